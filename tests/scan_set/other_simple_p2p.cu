// Copies between two GPUs through unified addresses; see also cudaMemcpyPeer().
#include <cuda_runtime.h>
#include <helper_cuda.h>
#include <stdio.h>

__global__ void SimpleKernel(float *src, float *dst) {
  const int idx = blockIdx.x * blockDim.x + threadIdx.x;
  dst[idx] = src[idx] * 2.0f;
}

int main(int argc, char **argv) {
  int can = 0;
  checkCudaErrors(cudaDeviceCanAccessPeer(&can, 0, 1));
  if (!can) {
    printf("Peer access is not there, cudaMemcpyPeer(dst, 1, src, 0, n) would go through the host\n");
    return 2;
  }
  const size_t buf_size = 1024 * 1024 * 16 * sizeof(float);
  float *g0, *g1, *h0;
  checkCudaErrors(cudaSetDevice(0));
  checkCudaErrors(cudaDeviceEnablePeerAccess(1, 0));
  checkCudaErrors(cudaMalloc(&g0, buf_size));
  checkCudaErrors(cudaSetDevice(1));
  checkCudaErrors(cudaMalloc(&g1, buf_size));
  checkCudaErrors(cudaMallocHost(&h0, buf_size));

  for (int i = 0; i < 100; i++) {
    // ping-pong
    if (i % 2 == 0)
      checkCudaErrors(cudaMemcpy(g1, g0, buf_size, cudaMemcpyDefault));
    else
      checkCudaErrors(cudaMemcpy(g0, g1, buf_size, cudaMemcpyDefault));
  }
  SimpleKernel<<<512, 512>>>(g0, g1);
  checkCudaErrors(cudaDeviceSynchronize());
}
