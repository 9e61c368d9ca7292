#define REDUCE(x) \
  ncclAllReduce(x, x, n, ncclFloat, ncclSum, comm, stream)
#define GATHER ncclAllGather
int main() {
  for (int i = 0; i < 9; ++i) {
    REDUCE(weights);
    GATHER(a, b, n, ncclFloat, comm, stream);
  }
}
