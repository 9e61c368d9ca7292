#include <mpi.h>
int main(void) {
  if (rank == 0) {
    for (int w = 1; w < size; w++)
      MPI_Send(&task, 1, MPI_INT, w, 0, MPI_COMM_WORLD);
  } else {
    MPI_Recv(&task, 1, MPI_INT, 0, 0, MPI_COMM_WORLD, &status);
  }
}
