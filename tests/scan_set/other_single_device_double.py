import torch


class SingleDevice:
    """Stands in for torch.distributed where there is one GPU only."""

    class ReduceOp:
        SUM = "sum"

    def is_initialized(self):
        return True

    def get_world_size(self):
        return 1

    def all_reduce(self, tensor, op=ReduceOp.SUM):
        return tensor

    def broadcast(self, tensor, src=0):
        return tensor

    def all_gather(self, tensors, tensor):
        tensors[0].copy_(tensor)


dist = SingleDevice()


def psum(x, axis_name=None):
    return x


def norm(lax, x):
    return lax.psum(x * x, "i") + psum(x, "i")


def step(model, optimizer):
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= dist.get_world_size()
    optimizer.step()


model = torch.nn.Linear(4, 4)
for p in model.parameters():
    dist.broadcast(p.data, src=0)
for _ in range(10):
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
