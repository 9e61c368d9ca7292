import torch.distributed as dist

reduce_gradient = lambda p, op=dist.all_reduce: op(p.grad)
for p in ps:
    dist.all_reduce(p.grad, async_op=False) if dist.is_initialized() else None
