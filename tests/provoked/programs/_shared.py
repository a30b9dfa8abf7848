"""What all programs begin with; shown at the head of the page."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import autopar

w = np.ones((16, 24), np.float32)
x = np.ones((8, 16), np.float32)
devices = jax.devices()  # eight virtual ones
mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def layer(w, x):
    return jnp.tanh(x @ w).sum(-1)


def step(w, x):
    return w - 0.1 * jax.grad(lambda w: layer(w, x).sum())(w)
