from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard

wrap = partial(FSDP, device_id=0)
model = wrap(model)
fully_shard(other)
