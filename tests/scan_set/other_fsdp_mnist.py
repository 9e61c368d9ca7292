import functools
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy
from torch.utils.data.distributed import DistributedSampler


def train(args, model, rank, loader, optimizer, epoch, sampler=None):
    model.train()
    ddp_loss = torch.zeros(2).to(rank)
    if sampler:
        sampler.set_epoch(epoch)
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data.to(rank)), target.to(rank), reduction="sum")
        loss.backward()
        optimizer.step()
        ddp_loss[0] += loss.item()
        ddp_loss[1] += len(data)
    dist.all_reduce(ddp_loss, op=dist.ReduceOp.SUM)
    if rank == 0:
        print(f"Train epoch {epoch}\tloss {ddp_loss[0] / ddp_loss[1]:.6f}")


def fsdp_main(rank, world_size, args):
    os.environ.setdefault("MASTER_ADDR", "localhost")
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    sampler = DistributedSampler(dataset, rank=rank, num_replicas=world_size, shuffle=True)
    torch.cuda.set_device(rank)
    model = FSDP(Net().to(rank), auto_wrap_policy=policy, cpu_offload=CPUOffload(offload_params=True))
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        train(args, model, rank, loader, optimizer, epoch, sampler=sampler)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    args = parse()
    mp.spawn(fsdp_main, args=(torch.cuda.device_count(), args), nprocs=torch.cuda.device_count(), join=True)
