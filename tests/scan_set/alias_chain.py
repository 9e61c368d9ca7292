import torch as t

reduce = t.distributed.all_reduce
gather = getattr(t.distributed, "all_gather_into_tensor")
while True:
    reduce(x)
    gather(y, x)
