"""Writes training scripts.

Example of what comes out::

    import torch.distributed as dist
    dist.all_reduce(grads)
"""

import argparse
import ast
from pathlib import Path
from string import Template

HEADER = Template(
    '''#!/usr/bin/env python
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("$backend")
'''
)

BODIES = {
    "ddp": "model = DDP(model.cuda(), device_ids=[local_rank])\n",
    "manual": "for p in model.parameters():\n    dist.all_reduce(p.grad)\n",
    "horovod": "optimizer = hvd.DistributedOptimizer(optimizer)\n",
}


def render(kind: str, backend: str) -> str:
    text = HEADER.substitute(backend=backend) + BODIES[kind]
    if kind == "manual":
        text += f"dist.broadcast(model.weight, src={0})\n"
    ast.parse(text)  # dist.reduce_scatter_tensor(out, grads) once shards are supported
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="make a script with dist.all_reduce() or hvd.allreduce()")
    parser.add_argument("kind", choices=sorted(BODIES))
    parser.add_argument("-o", type=Path, required=True)
    args = parser.parse_args()
    args.o.write_text(render(args.kind, "nccl"))
