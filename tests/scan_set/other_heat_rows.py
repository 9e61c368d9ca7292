import cupy as cp
import numpy as np
from mpi4py import MPI


def exchange(u, comm):
    rank, size = comm.Get_rank(), comm.Get_size()
    up = rank - 1 if rank > 0 else MPI.PROC_NULL
    down = rank + 1 if rank < size - 1 else MPI.PROC_NULL
    comm.Sendrecv(u[1], dest=up, recvbuf=u[-1], source=down)
    comm.Sendrecv(u[-2], dest=down, recvbuf=u[0], source=up)


def main():
    comm = MPI.COMM_WORLD
    cp.cuda.Device(comm.rank % cp.cuda.runtime.getDeviceCount()).use()
    u = cp.zeros((1026, 8192), dtype=np.float32)
    u[0] = 1.0
    for iteration in range(10_000):
        exchange(u, comm)
        new = 0.25 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:])
        diff = float(cp.abs(new - u[1:-1, 1:-1]).max())
        u[1:-1, 1:-1] = new
        if iteration % 100 == 0:
            total = comm.allreduce(diff, op=MPI.MAX)
            if total < 1e-5:
                break


if __name__ == "__main__":
    main()
