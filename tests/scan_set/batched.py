import torch.distributed as dist

rank, size = dist.get_rank(), dist.get_world_size()
for _ in range(size):
    operations = [
        dist.P2POp(dist.isend, a, (rank + 1) % size),
        dist.P2POp(dist.irecv, b, (rank - 1) % size),
    ]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
