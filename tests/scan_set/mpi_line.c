#include <mpi.h>
void exchange(double *u) {
  int left = rank > 0 ? rank - 1 : MPI_PROC_NULL;
  int right = (rank < size - 1) ? rank + 1 : MPI_PROC_NULL;
  MPI_Sendrecv(u, n, MPI_DOUBLE, left, 0, v, n, MPI_DOUBLE, right, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
