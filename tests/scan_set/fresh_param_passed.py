from mpi4py import MPI


def work(comm, data):
    rank = comm.Get_rank()
    comm.Reduce(data, out, root=0)
    for _ in range(9):
        comm.Allreduce(MPI.IN_PLACE, data)


def world():
    return MPI.COMM_WORLD


if __name__ == "__main__":
    work(world(), [1])
