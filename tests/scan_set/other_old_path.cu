#include <nccl.h>

#define NCCL(call) nccl_check((call), __FILE__, __LINE__)

static void reduce(float *grads, size_t n, int rank, int ranks, ncclComm_t comm, cudaStream_t stream) {
#if 0  // v1: everything over the root
  NCCL(ncclReduce(grads, grads, n, ncclFloat, ncclSum, 0, comm, stream));
  NCCL(ncclBcast(grads, n, ncclFloat, 0, comm, stream));
#elif defined(SHARDED)
  size_t part = n / ranks;
  NCCL(ncclReduceScatter(grads, grads + rank * part, part, ncclFloat, ncclSum, comm, stream));
  adam_shard(grads + rank * part, part, stream);
  NCCL(ncclAllGather(grads + rank * part, grads, part, ncclFloat, comm, stream));
#else
  NCCL(ncclAllReduce(grads, grads, n, ncclFloat, ncclSum, comm, stream));
#endif
  if (0) cudaMemcpyPeer(grads, 0, grads, 1, n);
  // NCCL(ncclSend(grads, n, ncclFloat, 0, comm, stream));
}

int main() {
  setup();
  while (step < max_steps) {
    compute(step, stream);
    reduce(grads, n, rank, ranks, comm, stream);
    ++step;
  }
}
