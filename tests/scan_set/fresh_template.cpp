#include <nccl.h>
template <typename T>
ncclResult_t reduce(T *x, size_t n, ncclComm_t c, cudaStream_t s) {
  return ncclAllReduce(x, x, n, ncclFloat, ncclSum, c, s);
}
struct Trainer {
  void step() { auto f = [&] { reduce<float>(g, n, c, s); }; f(); }
};
int main() { Trainer t; for (int i = 0; i < 9; ++i) { t.step(); reduce(g, n, c, s); } }
