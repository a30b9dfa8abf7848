"""Ways to train, around one small network: optimisers that iterate, unrolled and inner loops, implicit layers, CTC."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from tests.models.weights import Built, Step, Tree, integers, normal, with_gradients

ROWS, WIDTH, HIDDEN = 64, 32, 64


def weights() -> Tree:
    return {
        "up": normal((WIDTH, HIDDEN), 0, WIDTH**-0.5),
        "bias": normal((HIDDEN,), 1, 0.1),
        "down": normal((HIDDEN, WIDTH), 2, HIDDEN**-0.5),
    }


def error(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.square(jnp.tanh(x @ params["up"] + params["bias"]) @ params["down"] - y).mean()


def data() -> tuple[np.ndarray, np.ndarray]:
    return normal((ROWS, WIDTH)), normal((ROWS, WIDTH), 1)


def descend(params: Tree, x: jax.Array, y: jax.Array) -> Tree:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(error)(params, x, y))


def muon() -> Built:
    """Momentum made orthogonal by a Newton-Schulz iteration: a loop that is unrolled."""
    tx, params = optax.contrib.muon(1e-2), weights()

    def step(params: Tree, opt: Any, x: jax.Array, y: jax.Array) -> Any:
        value, grads = jax.value_and_grad(error)(params, x, y)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), value

    return step, (params, tx.init(params), *data())


def line_search() -> Built:
    """L-BFGS: two loops over past steps, and a zoom line search that evaluates the loss in a while loop."""
    tx, params = optax.lbfgs(), weights()

    def step(params: Tree, opt: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Tree) -> jax.Array:
            return error(params, x, y)

        value, grads = optax.value_and_grad_from_state(loss)(params, state=opt)
        updates, _ = tx.update(grads, opt, params, value=value, grad=grads, value_fn=loss)
        return optax.apply_updates(params, updates), value

    return step, (params, tx.init(params), *data())


def meta_learning() -> Built:
    """MAML: the gradient through two steps of training, for each of 8 tasks under vmap."""

    def task(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        trained, _ = lax.scan(lambda p, _: (descend(p, x[:8], y[:8]), None), params, None, length=2)
        return error(trained, x[8:], y[8:])

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.vmap(task, in_axes=(None, 0, 0))(params, x, y).mean()

    return with_gradients(loss), (weights(), normal((8, 16, WIDTH)), normal((8, 16, WIDTH), 1))


def accumulation() -> Built:
    """Gradients of four microbatches added up in a scan over rematerialised losses."""

    def step(params: Tree, x: jax.Array, y: jax.Array) -> Any:
        def add(total: Any, part: Any) -> Any:
            return jax.tree.map(
                jnp.add, total, jax.value_and_grad(jax.checkpoint(error))(params, *part)
            ), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        parts = x.reshape(4, -1, WIDTH), y.reshape(4, -1, WIDTH)
        (value, grads), _ = lax.scan(add, zero, parts)
        return jax.tree.map(lambda p, g: p - 0.025 * g, params, grads), value / 4

    return step, (weights(), *data())


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def fixed_point(function: Step, params: Tree, x: jax.Array) -> jax.Array:
    """z = function(params, x, z), by iterating until it no longer changes."""

    def goes_on(state: Any) -> jax.Array:
        return (jnp.max(jnp.abs(state[0] - state[1])) > 1e-5) & (state[2] < 50)

    def again(state: Any) -> Any:
        return function(params, x, state[0]), state[0], state[2] + 1

    start = jnp.zeros_like(x)
    return lax.while_loop(goes_on, again, (function(params, x, start), start, 0))[0]


def forwards(function: Step, params: Tree, x: jax.Array) -> Any:
    z = fixed_point(function, params, x)
    return z, (params, x, z)


def backwards(function: Step, kept: Any, given: jax.Array) -> Any:
    params, x, z = kept
    _, along = jax.vjp(lambda z: function(params, x, z), z)
    adjoint = fixed_point(lambda _, given, u: along(u)[0] + given, None, given)
    return jax.vjp(lambda params, x: function(params, x, z), params, x)[1](adjoint)


fixed_point.defvjp(forwards, backwards)


def equilibrium() -> Built:
    """A deep equilibrium layer: a while loop forwards, another for its implicit derivative."""
    params = {
        "inner": normal((WIDTH, WIDTH), 0, 0.05),
        "outer": normal((WIDTH, WIDTH), 1, WIDTH**-0.5),
    }

    def layer(params: Tree, x: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.tanh(z @ params["inner"] + x @ params["outer"])

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.square(fixed_point(layer, params, x) - y).mean()

    return with_gradients(loss), (params, *data())


def speech() -> Built:
    """CTC over frames: a scan over time in log space, with padded labels."""
    params = {"head": normal((WIDTH, 16), 0, WIDTH**-0.5)}

    def loss(params: Tree, frames: jax.Array, labels: jax.Array, paddings: jax.Array) -> jax.Array:
        logits = frames @ params["head"]
        return optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), labels, paddings).mean()

    paddings = (np.arange(4) >= integers(4, (8, 1)) + 1).astype(np.float32)
    return with_gradients(loss), (
        params,
        normal((8, 16, WIDTH)),
        integers(15, (8, 4)) + 1,
        paddings,
    )
