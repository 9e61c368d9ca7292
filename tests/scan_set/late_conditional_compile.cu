#ifdef USE_NCCL
#define ALLREDUCE(x, n) NCCLCHECK(ncclAllReduce(x, x, n, ncclFloat, ncclSum, comm, s))
#else
#define ALLREDUCE(x, n)
#endif
int main() {
  for (int e = 0; e < epochs; e++)
    for (int b = 0; b < batches; b++)
      ALLREDUCE(grads, n);
}
