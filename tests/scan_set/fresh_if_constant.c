#include <mpi.h>
int main(void) {
  if (0) { MPI_Alltoall(a, 1, MPI_INT, b, 1, MPI_INT, comm); }
  if (0) MPI_Bcast(a, 1, MPI_INT, 0, comm); else MPI_Allgather(a, 8, MPI_INT, b, 8, MPI_INT, comm);
}
