#include <nccl.h>
void log_loss() {
  ncclAllReduce(&loss, &loss, 1, ncclFloat, ncclSum, comm, stream);
}
int main() { for (;;) { log_loss(); } }
