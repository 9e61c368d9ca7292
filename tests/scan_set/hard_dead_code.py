from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    dist.all_reduce(a)
if False:
    dist.all_reduce(b)
while 0:
    dist.all_reduce(c)
