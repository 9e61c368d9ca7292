import torch
import torch.distributed as dist

dist.init_process_group("nccl")
dist.broadcast(weights, src=0)
total = torch.tensor([1.0, 2.0])
dist.all_reduce(total)
dist.barrier()
dist.destroy_process_group()
