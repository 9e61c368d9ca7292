#define REDUCE(x) ncclAllReduce(x, x, n, ncclFloat, ncclSum, comm, stream)
#define NEVER(x)
int main() {
  NEVER(ncclBroadcast(a, a, n, ncclFloat, 0, comm, stream));
  return 0;
}
