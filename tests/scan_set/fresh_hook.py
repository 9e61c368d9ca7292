import torch
import torch.distributed as dist


def hook(parameter):
    dist.all_reduce(parameter.grad)


for p in model.parameters():
    p.register_post_accumulate_grad_hook(hook)
