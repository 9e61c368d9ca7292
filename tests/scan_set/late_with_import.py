def reduce_later(x):
    import torch.distributed as dist

    if not dist.is_available():
        return x
    dist.all_reduce(x)
    return x


def other(dist, x):
    dist.all_reduce(x)
