#include <mpi.h>

void exchange(double *x, int peer) {
  MPI_Send(x, n, MPI_DOUBLE, peer, 0, MPI_COMM_WORLD);
}

static void master(int ranks) {
  for (int i = 0; i < tasks; ++i) {
    int idle = next_idle();
    MPI_Send(task[i], n, MPI_DOUBLE, idle, 1, MPI_COMM_WORLD);
    MPI_Recv(result[i], n, MPI_DOUBLE, MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &status);
  }
  exchange(x, pick());
}

static void worker(void) {
  while (more) MPI_Recv(x, n, MPI_DOUBLE, 0, 1, MPI_COMM_WORLD, &status);
  exchange(x, pick());
}

int main(int argc, char **argv) {
  if (rank == 0)
    master(ranks);
  else
    worker();
}
