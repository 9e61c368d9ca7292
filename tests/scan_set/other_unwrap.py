from __future__ import annotations

from typing import Optional

import torch
from torch import nn

try:
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.nn.parallel import DataParallel, DistributedDataParallel as DDP

    WRAPPERS = True
except ImportError:
    WRAPPERS = False

try:
    from mpi4py import MPI
except ImportError:
    MPI = None


def unwrap(model: nn.Module | DDP) -> nn.Module:
    if WRAPPERS and isinstance(model, (DDP, DataParallel, FSDP)):
        return model.module
    return model


def is_main(group: Optional[dist.ProcessGroup] = None) -> bool:
    return not dist.is_available() or not dist.is_initialized() or dist.get_rank(group) == 0


def save(model: DDP, path: str) -> None:
    if is_main():
        torch.save(unwrap(model).state_dict(), path)
    if dist.is_initialized():
        dist.barrier()
