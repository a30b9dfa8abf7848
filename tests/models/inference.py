"""Steps of numpyro: variational inference and Hamiltonian Monte Carlo."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import HMC, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from tests.models.weights import Built, normal, random_weights

ROWS, FEATURES, HIDDEN = 64, 8, 16


def network(x: Any, y: Any = None) -> None:
    """A Bayesian neural network of one hidden layer."""
    first = numpyro.sample("first", dist.Normal(jnp.zeros((FEATURES, HIDDEN)), 1.0).to_event(2))
    second = numpyro.sample("second", dist.Normal(jnp.zeros((HIDDEN,)), 1.0).to_event(1))
    noise = numpyro.sample("noise", dist.Gamma(3.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.tanh(x @ first) @ second, 1.0 / jnp.sqrt(noise)), obs=y)


def data() -> tuple[np.ndarray, np.ndarray]:
    x = normal((ROWS, FEATURES))
    return x, np.tanh(x[:, 0]) + normal((ROWS,), 1, 0.1)


def variational() -> Built:
    """One update of SVI with an AutoNormal guide; the key is part of the state."""
    x, y = data()
    svi = SVI(network, AutoNormal(network), numpyro.optim.SGD(1e-3), Trace_ELBO(num_particles=8))
    state = random_weights(svi.init, jax.random.PRNGKey(0), x, y)

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        return svi.update(state, x, y)

    return step, (state, x, y)


def hamiltonian() -> Built:
    """One transition of HMC: four leapfrog steps in a loop, the momentum drawn, accepted or not."""
    x, y = data()
    kernel = HMC(
        network, step_size=0.01, num_steps=4, adapt_step_size=False, adapt_mass_matrix=False
    )
    state = kernel.init(jax.random.PRNGKey(0), 0, None, (x, y), {})

    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        return kernel.sample(state, (x, y), {})

    return step, (state, x, y)
