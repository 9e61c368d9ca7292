import torch.distributed as dist

HOW = {"sum": dist.all_reduce, "gather": dist.all_gather, "swap": dist.all_to_all}


def run(name, x):
    HOW[name](x)
