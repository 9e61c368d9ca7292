try:
    import horovod.tensorflow.keras as hvd
except ImportError:
    hvd = None

if hvd is not None:
    opt = hvd.DistributedOptimizer(opt)
