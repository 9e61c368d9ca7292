#include <mpi.h>
int main() {
  MPI_Cart_create(MPI_COMM_WORLD, 3, dims, periods, true, &cart);
  for (int it = 0; it < iterations; ++it)
    MPI_Neighbor_alltoallv(s, sc, sd, MPI_DOUBLE, r, rc, rd, MPI_DOUBLE, cart);
}
