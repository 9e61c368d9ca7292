#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#define cudaCheckError()                                                              \
  {                                                                                   \
    cudaError_t e = cudaGetLastError();                                               \
    if (e != cudaSuccess) {                                                           \
      printf("Cuda failure %s:%d: '%s'\n", __FILE__, __LINE__, cudaGetErrorString(e)); \
      exit(EXIT_FAILURE);                                                             \
    }                                                                                 \
  }

static void performP2PCopy(int *dest, int destDevice, int *src, int srcDevice, int num_elems, int repeat,
                           cudaStream_t stream) {
  for (int r = 0; r < repeat; r++) {
    cudaMemcpyPeerAsync(dest, destDevice, src, srcDevice, sizeof(int) * num_elems, stream);
  }
}

void outputBandwidthMatrix(int numGPUs, bool p2p) {
  int numElems = 40000000, repeat = 5;
  std::vector<int *> buffers(numGPUs);
  std::vector<cudaEvent_t> start(numGPUs), stop(numGPUs);
  std::vector<cudaStream_t> stream(numGPUs);
  for (int i = 0; i < numGPUs; i++) {
    for (int j = 0; j < numGPUs; j++) {
      int access = 0;
      if (p2p) cudaDeviceCanAccessPeer(&access, i, j);
      cudaSetDevice(i);
      cudaEventRecord(start[i], stream[i]);
      performP2PCopy(buffers[i], i, buffers[j], j, numElems, repeat, stream[i]);
      cudaEventRecord(stop[i], stream[i]);
      cudaStreamSynchronize(stream[i]);
      cudaCheckError();
    }
  }
}

int main(int argc, char **argv) {
  int numGPUs;
  cudaGetDeviceCount(&numGPUs);
  outputBandwidthMatrix(numGPUs, false);
  outputBandwidthMatrix(numGPUs, true);
}
