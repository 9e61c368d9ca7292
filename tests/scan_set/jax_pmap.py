from functools import partial

import jax
from jax import lax


@partial(jax.pmap, axis_name="i")
def update(params, batch):
    grads = jax.grad(loss)(params, batch)
    grads = jax.tree_util.tree_map(lambda g: lax.pmean(g, "i"), grads)
    return params - grads


for batch in batches:
    params = update(params, batch)
