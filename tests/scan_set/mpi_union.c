#include <mpi.h>
int main(void) {
  MPI_Bcast(&parameters, 12, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  do {
    MPI_Allreduce(a, b, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  } while (error > 1e-6);
}
