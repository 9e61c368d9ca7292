#include <nvshmem.h>
#include <nvshmemx.h>

__global__ void shift(float *dst, const float *src, size_t n) {
  int mype = nvshmem_my_pe();
  int npes = nvshmem_n_pes();
  int peer = (mype + 1) % npes;
  nvshmemx_float_put_nbi_block(dst, src, n, peer);
  nvshmem_quiet();
}

int main(int argc, char **argv) {
  nvshmem_init();
  int mype_node = nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE);
  cudaSetDevice(mype_node);
  float *dst = (float *)nvshmem_malloc(bytes);
  float *src = (float *)nvshmem_malloc(bytes);
  for (int step = 0; step < steps; ++step) {
    shift<<<1, 256, 0, stream>>>(dst, src, n);
    nvshmemx_barrier_all_on_stream(stream);
    float *t = dst;
    dst = src;
    src = t;
  }
  cudaStreamSynchronize(stream);
  nvshmem_free(dst);
  nvshmem_finalize();
}
