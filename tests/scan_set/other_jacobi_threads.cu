#include <cuda_runtime.h>
#include <omp.h>

#define MAX_NUM_DEVICES 32

int main(int argc, char *argv[]) {
  int num_devices = 0;
  CUDA_RT_CALL(cudaGetDeviceCount(&num_devices));
  float *a_new[MAX_NUM_DEVICES];
  int iy_end[MAX_NUM_DEVICES];
#pragma omp parallel num_threads(num_devices)
  {
    int dev_id = omp_get_thread_num();
    CUDA_RT_CALL(cudaSetDevice(dev_id));
    for (int iter = 0; iter < iter_max; ++iter) {
      jacobi<<<dim_grid, dim_block, 0, compute_stream>>>(a_new[dev_id], a, nx);
      const int top = dev_id > 0 ? dev_id - 1 : (num_devices - 1);
      const int bottom = (dev_id + 1) % num_devices;
      CUDA_RT_CALL(cudaMemcpyPeerAsync(a_new[top] + iy_end[top] * nx, top, a_new[dev_id] + nx, dev_id,
                                       nx * sizeof(float), push_top_stream));
      CUDA_RT_CALL(cudaMemcpyPeerAsync(a_new[bottom], bottom, a_new[dev_id] + (iy_end[dev_id] - 1) * nx, dev_id,
                                       nx * sizeof(float), push_bottom_stream));
#pragma omp barrier
    }
  }
}
