import torch.distributed as dist

comm = None


def setup():
    global comm
    comm = dist


def step(x):
    comm.all_gather(outputs, x)
