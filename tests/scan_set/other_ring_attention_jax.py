import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P


def ring_attention(q, k, v, axis_name, axis_size):
    """Keys and values go around the ring while queries stay."""
    scale = q.shape[-1] ** -0.5

    def step(carry, _):
        acc, row_max, denominator, k, v = carry
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale
        new_max = jnp.maximum(row_max, scores.max(-1))
        weight = jnp.exp(scores - new_max[..., None])
        shrink = jnp.exp(row_max - new_max)
        acc = acc * shrink[..., None] + jnp.einsum("bhqk,bkhd->bhqd", weight, v)
        denominator = denominator * shrink + weight.sum(-1)
        perm = [(i, (i + 1) % axis_size) for i in range(axis_size)]
        k, v = map(lambda x: lax.ppermute(x, axis_name, perm=perm), (k, v))
        return (acc, new_max, denominator, k, v), None

    b, n, h, d = q.shape
    start = (jnp.zeros((b, h, n, d)), jnp.full((b, h, n), -jnp.inf), jnp.zeros((b, h, n)), k, v)
    (acc, _, denominator, _, _), _ = lax.scan(step, start, xs=None, length=axis_size)
    return acc / denominator[..., None]


def make(mesh, axis="sp"):
    spec = P(None, axis, None, None)
    fn = functools.partial(ring_attention, axis_name=axis, axis_size=mesh.shape[axis])
    return jax.shard_map(fn, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec)
