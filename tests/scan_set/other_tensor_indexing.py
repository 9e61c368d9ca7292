"""Same words, other things: torch.gather, np.broadcast, Connection.send, dask's scatter."""

import asyncio
import multiprocessing as mp
from functools import reduce

import jax.numpy as jnp
import numpy as np
import torch
from dask.distributed import Client


def pick(logits, labels):
    # dist.all_gather(outputs, logits) is what the multi-GPU version does here
    picked = torch.gather(logits, 1, labels[:, None])
    counts = torch.zeros(10).scatter_add(0, labels, torch.ones_like(labels, dtype=torch.float))
    return picked, counts.scatter(0, labels, 1.0).index_reduce(0, labels, counts, "mean")


def child(connection):
    while (item := connection.recv()) is not None:
        connection.send(pick(*item))


async def serve(socket, queue):
    async for message in socket:
        await socket.send(await queue.get())
        await asyncio.gather(*(peer.send(message) for peer in socket.peers))


def main():
    parent, other = mp.Pipe()
    process = mp.Process(target=child, args=(other,))
    process.start()
    for batch in range(10):
        parent.send((torch.rand(8, 10), torch.randint(10, (8,))))
        print(parent.recv())
    parent.send(None)
    client = Client()
    futures = client.scatter(list(range(10)), broadcast=True)
    results = client.gather(futures)
    total = reduce(np.add, results)
    return np.broadcast_to(total, (3,)), jnp.broadcast_to(jnp.asarray(total), (3,)), np.broadcast(total, results)


if __name__ == "__main__":
    main()
