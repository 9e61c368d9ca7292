#include <nccl.h>
static void worker(Comm &c) {
  std::thread t([&] { ncclAllReduce(c.a, c.b, c.n, ncclFloat, ncclSum, c.comm, c.s); });
  t.join();
}
