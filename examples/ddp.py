"""Train a linear model on all GPUs of a job, one process for each; on CPUs where CUDA finds none.

gpulaunch -n 2 -- torchrun --standalone --nproc-per-node 2 examples/ddp.py
"""

import os

import torch
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, device: torch.device) -> float:
    """Return the loss of this process after training together with the others."""
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(rank)  # each process has samples of its own
    for _ in range(100):
        samples = torch.randn(64, 8, generator=draw).to(device)
        loss = torch.nn.functional.mse_loss(model(samples), samples.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # here the processes average their gradients
        optimizer.step()
    return loss.item()


on_gpus = torch.cuda.is_available()
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank) if on_gpus else torch.device("cpu")
if on_gpus:
    torch.cuda.set_device(device)  # GPU 0, 1, ... of those in CUDA_VISIBLE_DEVICES
torch.distributed.init_process_group("nccl" if on_gpus else "gloo")
loss = train(torch.distributed.get_rank(), device)
gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "(all there are)")
print(f"process {local_rank} of the job on GPUs {gpus}: loss {loss:.2g} on {device}", flush=True)
torch.distributed.barrier()  # none leaves while another still talks to it
torch.distributed.destroy_process_group()
