import redis


def notify(comm, model):
    comm.send("x")
    comm.Allreduce(1)
    model.all_reduce()
    redis.Redis().broadcast("hello")
    send = comm.isend
    send(1)
