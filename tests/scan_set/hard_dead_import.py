import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from mpi4py import MPI


def size(model: DistributedDataParallel) -> int:
    return 1 if isinstance(model, DistributedDataParallel) else dist.get_world_size()
