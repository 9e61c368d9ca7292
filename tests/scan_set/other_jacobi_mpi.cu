#include <mpi.h>

#include <cmath>

#define MPI_CALL(call)                                                                    \
  {                                                                                       \
    int mpi_status = call;                                                                \
    if (MPI_SUCCESS != mpi_status) fprintf(stderr, "MPI call \"%s\" failed\n", #call);     \
  }

typedef float real;
#define MPI_REAL_TYPE MPI_FLOAT

int main(int argc, char *argv[]) {
  MPI_CALL(MPI_Init(&argc, &argv));
  int rank, size;
  MPI_CALL(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  MPI_CALL(MPI_Comm_size(MPI_COMM_WORLD, &size));
  int iter = 0;
  bool l2_norm_greater_than_tol = true;
  while (l2_norm_greater_than_tol && iter < iter_max) {
    launch_jacobi_kernel(a_new, a, l2_norm_d, iy_start, iy_end, nx, compute_stream);
    const int top = rank > 0 ? rank - 1 : (size - 1);
    const int bottom = (rank + 1) % size;
    // the boundaries are periodic
    MPI_CALL(MPI_Sendrecv(a_new + iy_start * nx, nx, MPI_REAL_TYPE, top, 0,
                          a_new + (iy_end * nx), nx, MPI_REAL_TYPE, bottom, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    MPI_CALL(MPI_Sendrecv(a_new + (iy_end - 1) * nx, nx, MPI_REAL_TYPE, bottom, 0, a_new, nx,
                          MPI_REAL_TYPE, top, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    real l2_norm;
    MPI_CALL(MPI_Allreduce(l2_norm_h, &l2_norm, 1, MPI_REAL_TYPE, MPI_SUM, MPI_COMM_WORLD));
    l2_norm_greater_than_tol = std::sqrt(l2_norm) > tol;
    std::swap(a_new, a);
    iter++;
  }
  MPI_CALL(MPI_Finalize());
}
