import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("nccl")
    model = DDP(torch.nn.Linear(8, 8).cuda())
    for batch in range(10):
        model(torch.zeros(8)).sum().backward()
    dist.barrier()


main()
