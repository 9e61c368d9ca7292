import torch.distributed as dist
for x in y:
    (
        dist
        .all_reduce(
            x,
            async_op=True,
        )
    )
