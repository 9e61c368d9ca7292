#include <stdio.h>
#include <stdlib.h>

#include "cuda_runtime.h"
#include "nccl.h"

#define CUDACHECK(cmd) do { cudaError_t e = cmd; if (e != cudaSuccess) exit(EXIT_FAILURE); } while (0)
#define NCCLCHECK(cmd) do { ncclResult_t r = cmd; if (r != ncclSuccess) exit(EXIT_FAILURE); } while (0)

int main(int argc, char *argv[]) {
  ncclComm_t comms[4];
  int nDev = 4;
  int size = 32 * 1024 * 1024;
  int devs[4] = {0, 1, 2, 3};
  float **sendbuff = (float **)malloc(nDev * sizeof(float *));
  float **recvbuff = (float **)malloc(nDev * sizeof(float *));
  cudaStream_t *s = (cudaStream_t *)malloc(sizeof(cudaStream_t) * nDev);

  for (int i = 0; i < nDev; ++i) {
    CUDACHECK(cudaSetDevice(i));
    CUDACHECK(cudaMalloc((void **)sendbuff + i, size * sizeof(float)));
    CUDACHECK(cudaMalloc((void **)recvbuff + i, size * sizeof(float)));
    CUDACHECK(cudaStreamCreate(s + i));
  }
  NCCLCHECK(ncclCommInitAll(comms, nDev, devs));

  // one call for all devices of this thread
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < nDev; ++i)
    NCCLCHECK(ncclAllReduce((const void *)sendbuff[i], (void *)recvbuff[i], size, ncclFloat, ncclSum,
                            comms[i], s[i]));
  NCCLCHECK(ncclGroupEnd());

  for (int i = 0; i < nDev; ++i) {
    CUDACHECK(cudaSetDevice(i));
    CUDACHECK(cudaStreamSynchronize(s[i]));
  }
  for (int i = 0; i < nDev; ++i) ncclCommDestroy(comms[i]);
  return 0;
}
