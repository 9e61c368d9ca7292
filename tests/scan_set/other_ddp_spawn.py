import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(torch.relu(self.net1(x)))


def demo_basic(rank, world_size):
    setup(rank, world_size)
    ddp_model = DDP(Toy().to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    for _ in range(20):
        optimizer.zero_grad()
        ddp_model(torch.randn(20, 10)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


def demo_checkpoint(rank, world_size):
    setup(rank, world_size)
    model = nn.parallel.DistributedDataParallel(Toy().to(rank), device_ids=[rank])
    path = tempfile.gettempdir() + "/model.checkpoint"
    if rank == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    model.load_state_dict(torch.load(path, map_location={"cuda:0": f"cuda:{rank}"}))
    dist.destroy_process_group()


def run_demo(demo_fn, world_size):
    mp.spawn(demo_fn, args=(world_size,), nprocs=world_size, join=True)


if __name__ == "__main__":
    n_gpus = torch.cuda.device_count()
    run_demo(demo_basic, n_gpus)
    run_demo(demo_checkpoint, n_gpus)
