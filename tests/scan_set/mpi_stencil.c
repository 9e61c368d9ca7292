#include <mpi.h>
#define NDIMS 2
void setup(void) {
  int dims[NDIMS] = {0, 0}, periods[NDIMS] = {0, 0};
  MPI_Dims_create(size, NDIMS, dims);
  MPI_Cart_create(MPI_COMM_WORLD, NDIMS, dims, periods, 1, &grid);
  MPI_Cart_shift(grid, 0, 1, &up, &down);
  MPI_Cart_shift(grid, 1, 1, &left, &right);
}
void halo(void) {
  MPI_Sendrecv(row, n, MPI_DOUBLE, up, 0, ghost, n, MPI_DOUBLE, down, 0, grid, MPI_STATUS_IGNORE);
  MPI_Isend(col, 1, column, left, 1, grid, &request);
}
