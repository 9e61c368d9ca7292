#include <nccl.h>
#define NCCLCHECK(cmd) do {                          \
    ncclResult_t r = cmd;                            \
    if (r != ncclSuccess) {                          \
      printf("failed: %s\n", #cmd);                  \
    }                                                \
  } while (0)

int main() {
  for (int step = 0; step < steps; ++step) {
    backward();
    NCCLCHECK(ncclAllReduce((const void*)send, (void*)recv, size, ncclFloat, ncclSum,
                            comm, stream));
  }
}
