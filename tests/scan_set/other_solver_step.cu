#include <nccl.h>

#include <vector>

struct Replica {
  float *weights, *diffs;
  size_t n;
  ncclComm_t comm;
  cudaStream_t stream;
};

static void nccl_ok(ncclResult_t r, const char *what) {
  if (r != ncclSuccess) throw std::runtime_error(std::string(what) + ": " + ncclGetErrorString(r));
}

void share_weights(std::vector<Replica> &replicas) {
  ncclGroupStart();
  for (auto &r : replicas)
    nccl_ok(ncclBcast(r.weights, r.n, ncclFloat, 0, r.comm, r.stream), "ncclBcast");
  ncclGroupEnd();
}

int main(int argc, char **argv) {
  std::vector<Replica> replicas = build(argc, argv);
  share_weights(replicas);
  for (int iter = 0; iter < max_iter; iter++) {
    for (auto &r : replicas) backward<<<grid, block, 0, r.stream>>>(r.weights, r.diffs, r.n);
    nccl_ok(ncclGroupStart(), "group");
    for (auto &r : replicas) {
      nccl_ok(ncclAllReduce(r.diffs, r.diffs, r.n, ncclFloat, ncclSum, r.comm, r.stream), "ncclAllReduce");
    }
    nccl_ok(ncclGroupEnd(), "group");
    for (auto &r : replicas) apply<<<grid, block, 0, r.stream>>>(r.weights, r.diffs, rate / replicas.size(), r.n);
  }
}
