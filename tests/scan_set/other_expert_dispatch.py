from typing import Any, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, input: Tensor) -> Tensor:
        ctx.group = group
        output = torch.empty_like(input)
        dist.all_to_all_single(output, input.contiguous(), group=group)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor) -> Tuple[None, Tensor]:
        return None, _AllToAll.apply(ctx.group, *grad_output)


class MOELayer(nn.Module):
    def __init__(self, gate, experts, group=None):
        super().__init__()
        self.gate = gate
        self.experts = nn.ModuleList(experts)
        self.group = group if group is not None else dist.group.WORLD
        self.world_size = dist.get_world_size(self.group)

    def forward(self, x: Tensor) -> Tensor:
        weights, mask = self.gate(x)
        dispatched = torch.einsum("sec,sm->ecm", mask.float(), x)
        dispatched = _AllToAll.apply(self.group, dispatched)
        chunks = dispatched.chunk(len(self.experts), dim=1)
        out = torch.cat([e(c) for c, e in zip(chunks, self.experts)], dim=1)
        out = _AllToAll.apply(self.group, out)
        return torch.einsum("sec,ecm->sm", weights, out)
