import horovod.torch as hvd

handles = [hvd.allreduce_async_(p.grad) for p in model.parameters()]
send = [hvd for hvd in range(3) if hvd.allgather(hvd)]
