import torch

try:
    from apex.parallel import DistributedDataParallel as DDP
except ImportError:
    from torch.nn.parallel import DistributedDataParallel as DDP

if torch.cuda.device_count() > 1:
    net = DDP(net)
