"""A program that measures all-reduce bandwidth with PyTorch, one process per GPU.

It runs under any python3 that has PyTorch, and prints a table as nccl-tests' all_reduce_perf does.
With gloo it runs on the CPU, which only checks the program itself.

Usage: torch_all_reduce.py nccl|gloo LEAST_BYTES MOST_BYTES GPUS
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist

WARM_UPS = 5
REPEATS = 20


def measure(rank: int, backend: str, count: int, least: int, most: int, port: int) -> None:
    """Run one rank of the benchmark; rank 0 prints the table."""
    on_gpu = backend == "nccl"
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group(backend, rank=rank, world_size=count)
    if on_gpu:
        torch.cuda.set_device(rank)
    place = "cuda" if on_gpu else "cpu"
    if rank == 0:
        print("# size busbw")
    size = least
    while size <= most:
        data = torch.ones(size // 4, dtype=torch.float32, device=place)
        seconds = timed(data, on_gpu=on_gpu)
        if rank == 0:
            print(size, f"{size * 2 * (count - 1) / count / seconds / 1e9:.3f}", flush=True)
        size *= 4
    dist.destroy_process_group()


def timed(data: "torch.Tensor", *, on_gpu: bool) -> float:
    """Return the seconds that one all-reduce takes."""
    for _ in range(WARM_UPS):
        dist.all_reduce(data)
    wait(on_gpu=on_gpu)
    begin = time.perf_counter()
    for _ in range(REPEATS):
        dist.all_reduce(data)
    wait(on_gpu=on_gpu)
    return (time.perf_counter() - begin) / REPEATS


def wait(*, on_gpu: bool) -> None:
    """Wait until the GPU has finished its work and all ranks are here."""
    if on_gpu:
        torch.cuda.synchronize()
    dist.barrier()


if __name__ == "__main__":
    least_bytes, most_bytes, gpus = map(int, sys.argv[2:])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        free_port = free.getsockname()[1]
    torch.multiprocessing.spawn(
        measure, args=(sys.argv[1], gpus, least_bytes, most_bytes, free_port), nprocs=gpus
    )
