"%s" % "dist.all_reduce(x)"
logger.info("hvd.allreduce took %s", seconds)
all_reduce = all_gather = send = print
all_reduce(1), all_gather(2), send(3)
