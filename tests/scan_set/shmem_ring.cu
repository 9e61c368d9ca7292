#include <nvshmem.h>
int main() {
  int peer = (mype + 1) % npes;
  nvshmem_float_put(destination, source, n, peer);
  nvshmem_barrier_all();
}
