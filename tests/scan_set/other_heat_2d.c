#include <mpi.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  int size, rank, dims[2] = {0, 0}, periods[2] = {0, 0}, north, south, west, east;
  double *u_d, *halo_d, local = 0.0, residual = 1.0;
  MPI_Comm cart;
  MPI_Request req[8];

  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Dims_create(size, 2, dims);
  MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 1, &cart);
  MPI_Comm_rank(cart, &rank);
  MPI_Cart_shift(cart, 0, 1, &north, &south);
  MPI_Cart_shift(cart, 1, 1, &west, &east);

  while (residual > 1e-6) {
    int k = 0;
    pack(u_d, halo_d);
    MPI_Irecv(halo_d + 0 * n, n, MPI_DOUBLE, north, 1, cart, &req[k++]);
    MPI_Irecv(halo_d + 1 * n, n, MPI_DOUBLE, south, 0, cart, &req[k++]);
    MPI_Isend(halo_d + 4 * n, n, MPI_DOUBLE, north, 0, cart, &req[k++]);
    MPI_Isend(halo_d + 5 * n, n, MPI_DOUBLE, south, 1, cart, &req[k++]);
    MPI_Irecv(halo_d + 2 * n, n, MPI_DOUBLE, west, 3, cart, &req[k++]);
    MPI_Irecv(halo_d + 3 * n, n, MPI_DOUBLE, east, 2, cart, &req[k++]);
    MPI_Isend(halo_d + 6 * n, n, MPI_DOUBLE, west, 2, cart, &req[k++]);
    MPI_Isend(halo_d + 7 * n, n, MPI_DOUBLE, east, 3, cart, &req[k++]);
    MPI_Waitall(k, req, MPI_STATUSES_IGNORE);
    local = sweep(u_d, halo_d);
    MPI_Allreduce(&local, &residual, 1, MPI_DOUBLE, MPI_MAX, cart);
  }
  MPI_Comm_free(&cart);
  MPI_Finalize();
  return 0;
}
