#include "nccl.h"
void shard(int steps) {
  while (steps--) {
    ncclAllGather(part, whole, count, ncclHalf, comm, stream);
    ncclReduceScatter(whole, part, count, ncclHalf, ncclSum, comm, stream);
  }
}
