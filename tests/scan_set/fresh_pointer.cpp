#include <nccl.h>
#include <functional>
void later() {
  auto call = &ncclAllReduce;
  call(a, a, n, ncclFloat, ncclSum, c, s);
}
