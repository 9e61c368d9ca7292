import jax
from jax.sharding import NamedSharding, PartitionSpec as P

sharding = NamedSharding(mesh, P("data"))
x = jax.device_put(x, sharding)
y = jax.device_put(y)
step = jax.jit(f, in_shardings=sharding)
plain = jax.jit(f)
