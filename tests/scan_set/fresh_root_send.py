import torch.distributed as dist


def scatter_work(parts):
    if dist.get_rank() == 0:
        for peer, part in enumerate(parts):
            dist.send(part, dst=peer)
    else:
        dist.recv(part, src=0)
