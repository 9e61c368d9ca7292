// ncclAllReduce(a, b, n, ncclFloat, ncclSum, comm, s);
/* and this is
   cudaMemcpyPeer(a, 0, b, 1, n);  */
int main() { /* MPI_Send( */ return 0; } // MPI_Bcast(x) \
   ncclSend(still, in, the, comment, c, s);
