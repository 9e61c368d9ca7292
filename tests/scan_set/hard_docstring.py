"""Calls torch.distributed.all_reduce(x) and dist.all_gather(y)."""

# import torch.distributed as dist; dist.all_reduce(x)
text = "dist.all_reduce(x)"
print(f"use dist.all_reduce({text})")
