# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A first plan
#
# autopar takes an ordinary JAX function and finds the fastest way to split it over the devices of a cluster. The
# cluster need not be there: shapes and a profile of the hardware are enough.

# %%
import jax
import jax.numpy as jnp

import autopar

jax.config.update("jax_num_cpu_devices", 8)  # eight virtual devices, for the last cells


def train_step(params, x, y):
    def loss(p):
        return jnp.mean((jax.nn.gelu(x @ p["up"]) @ p["down"] - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), value


# %% [markdown]
# ## Plan it for eight H100
#
# The arguments are shapes. `donate_argnums=0` says that the new parameters may take the memory of the old ones, as
# in `jax.jit`.


# %%
def shape(*dims):
    return jax.ShapeDtypeStruct(dims, jnp.bfloat16)


params = {"up": shape(4096, 16384), "down": shape(16384, 4096)}
batch = shape(4096, 4096), shape(4096, 4096)
plan = autopar.plan(train_step, params, *batch, cluster="8xh100", donate_argnums=0)
plan

# %% [markdown]
# Nobody asked for tensor parallelism. The columns of `up` and the rows of `down` are split because that is cheapest,
# and the plan comes with a proof: no other plan in the space that was searched is faster by more than the gap.

# %%
for name, placement in plan.placements.items():
    print(f"{name:16} {placement}")
print(plan.verify())

# %% [markdown]
# ## What if?
#
# A session answers questions about a plan. What if `up` lay split over four devices only?

# %%
from jax.sharding import PartitionSpec as P

session = autopar.explore(
    train_step, params, *batch, cluster="8xh100", mesh={"x": 2, "y": 4}, donate_argnums=0
)
session.pin("params['up']", P(None, "y"))

# %% [markdown]
# ## Run it
#
# `autopar.compile` plans for the devices that are present, here eight virtual ones, and runs the plan. The results
# are those of plain JAX.

# %%
small = {"up": jnp.full((64, 256), 0.01), "down": jnp.full((256, 64), 0.01)}
x, y = jnp.ones((32, 64)), jnp.zeros((32, 64))
expected = train_step(small, x, y)[1]

step = autopar.compile(train_step, mesh={"x": 8}, cluster="cpu8")
updated, value = step(small, x, y)
print(f"planned {value:.6f}, plain {expected:.6f}")
print(updated["up"].sharding.spec)

# %% [markdown]
# Next: [reading a report](reading_a_report.ipynb), [what the fastest plan depends on](trade_offs.ipynb).
