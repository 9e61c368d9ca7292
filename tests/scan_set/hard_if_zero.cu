#if 0
  ncclAllGather(a, b, n, ncclFloat, comm, s);
#if defined(DEEP)
  cudaMemcpyPeer(a, 0, b, 1, n);   it's not C
#endif
#else
void live() {
  ncclReduceScatter(a, b, n, ncclFloat, ncclSum, comm, s);
}
#endif
#if 1
#else
void gone() { MPI_Send(a, n, MPI_INT, 3, 0, comm); }
#endif
