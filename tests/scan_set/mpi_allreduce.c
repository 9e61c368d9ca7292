#include <mpi.h>
int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  for (int i = 0; i < 1000; i++) {
    MPI_Allreduce(MPI_IN_PLACE, device_buffer, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Finalize();
}
