#include <nvshmem.h>

__global__ void step(float *a, float value, const int top_pe) {
    nvshmem_float_p(a, value, top_pe);
}

int main(void) {
    int mype = nvshmem_my_pe(), npes = nvshmem_n_pes();
    int top_pe = (mype + 1) % npes;
    for (int i = 0; i < 100; i++) {
        step<<<1, 32>>>(a, 1.0f, top_pe);
    }
}
