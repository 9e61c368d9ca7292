import torch.distributed as dist


def rotate(block, rank, world):
    following = (rank + 1) % world
    work = dist.isend(block, following)
    dist.recv(block, src=(rank - 1) % world)
    work.wait()
