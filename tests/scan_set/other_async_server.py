import torch
import torch.distributed as dist


def server(model, world_size, steps):
    params = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    update = torch.zeros_like(params)
    for _ in range(steps):
        for worker in range(1, world_size):
            dist.recv(update, src=worker)
            params.add_(update, alpha=-0.01)
            dist.send(params, dst=worker)


def worker(model, loader, steps):
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    batches = iter(loader)
    for _ in range(steps):
        x, y = next(batches)
        loss = torch.nn.functional.mse_loss(model(x), y)
        delta = torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])
        dist.send(delta, dst=0)
        dist.recv(flat, src=0)
        torch.nn.utils.vector_to_parameters(flat, model.parameters())


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    if rank == 0:
        server(build(), dist.get_world_size(), 1000)
    else:
        worker(build(), load(rank), 1000)


main()
