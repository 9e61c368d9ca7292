#include <mpi.h>
int main(void) {
  for (int k = 0; k < 100; k++) {
    fft(line);
    MPI_Alltoall(a, n, MPI_DOUBLE, b, n, MPI_DOUBLE, MPI_COMM_WORLD);
  }
}
