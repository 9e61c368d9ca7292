import torch.distributed as dist


class Channel:
    def send(self, x):
        return x

    def all_reduce(self, x):
        self.send(x)
        return self.all_reduce(x)


channel = Channel()
channel.all_reduce(1)
channel.send(dist.ReduceOp.SUM)
all_reduce = channel.all_reduce
all_reduce(2)
