#include <nccl.h>
int main() {
  ncclCommInitAll(comms, 4, devices);
  ncclBroadcast(weights, weights, count, ncclFloat, 0, comm, stream);
  for (int i = 0; i < 100; i++) infer();
}
