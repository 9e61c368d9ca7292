from torch.distributed import all_reduce as ar, ReduceOp


def average_gradients(model):
    for parameter in model.parameters():
        ar(parameter.grad.data, op=ReduceOp.SUM)
