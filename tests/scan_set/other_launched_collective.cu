#include <cuda_runtime.h>

void exchange(float **peers, float *out, int count, cudaStream_t stream) {
    multimem_all_gather<4><<<8, 256, 0, stream>>>(peers, out, count);
    block_all_reduce<<<8, 256, 0, stream>>>(out, count);
    all_reduce_on_host(out, count);
}
