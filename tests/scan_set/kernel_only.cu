#include <cuda_runtime.h>
__global__ void scale(float *x, float f) { x[threadIdx.x] *= f; }
int main() {
  cudaMemcpy(d, h, n, cudaMemcpyHostToDevice);
  scale<<<grid, block>>>(d, 2.0f);
  cudaMemcpyAsync(h, d, n, cudaMemcpyDeviceToHost, stream);
}
