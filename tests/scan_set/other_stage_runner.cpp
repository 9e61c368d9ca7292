#include <nccl.h>

#include "stage.h"

class StageRunner {
 public:
  StageRunner(int stage, int num_stages, ncclComm_t comm) : stage_(stage), num_stages_(num_stages), comm_(comm) {}

  void run(int micro_batches, cudaStream_t stream) {
    const bool first = stage_ == 0;
    const bool last = stage_ == num_stages_ - 1;
    for (int m = 0; m < micro_batches; ++m) {
      if (!first) ncclRecv(acts_, n_, ncclHalf, stage_ - 1, comm_, stream);
      forward(m, stream);
      if (!last) ncclSend(acts_, n_, ncclHalf, stage_ + 1, comm_, stream);
    }
    for (int m = micro_batches - 1; m >= 0; --m) {
      if (!last) ncclRecv(grads_, n_, ncclHalf, stage_ + 1, comm_, stream);
      backward(m, stream);
      if (!first) ncclSend(grads_, n_, ncclHalf, stage_ - 1, comm_, stream);
    }
  }

 private:
  int stage_, num_stages_;
  ncclComm_t comm_;
  void *acts_, *grads_;
  size_t n_;
};
