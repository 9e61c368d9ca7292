import torch.distributed as dist
from horovod import torch as hvd

dist = None
hvd, other = object(), 3
for i in range(3):
    if dist:
        dist.all_reduce(i)
    hvd.allreduce(i)
with open("x") as dist:
    dist.send(b"")
del dist
