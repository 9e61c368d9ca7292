from mpi4py.MPI import COMM_WORLD as world


def act(kind, x):
    match kind:
        case "sum":
            world.Allreduce(x, y)
        case world if not world:
            pass
        case _:
            world.bcast(x)
