#include "cuda_runtime.h"
#include "common.h"

#define NCCLCHECK(cmd) do {                                            \
  ncclResult_t res = cmd;                                              \
  if (res != ncclSuccess) {                                            \
    printf("%s:%d: %s failed: %s\n", __FILE__, __LINE__, #cmd,         \
           ncclGetErrorString(res));                                   \
    return testNcclError;                                              \
  }                                                                    \
} while (0)

void AllReduceGetBw(size_t count, int typesize, double sec, double *algBw, double *busBw, int nranks) {
  double base = (double)(count * typesize) / 1.0E9 / sec;
  *algBw = base;
  *busBw = base * (2.0 * (nranks - 1)) / nranks;
}

testResult_t AllReduceRunColl(void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                              ncclComm_t comm, cudaStream_t stream) {
  NCCLCHECK(ncclAllReduce(send, recv, count, type, op, comm, stream));
  return testSuccess;
}

struct testColl allReduceTest = {"AllReduce", AllReduceGetBw, AllReduceRunColl};
