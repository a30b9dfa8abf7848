"""Functions with loops and branches in all their forms, for any plan to get right."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.equivalence.cases import Case

Tree = Any


def scan_over_layers(dtype: str) -> Case:
    """A training step of an MLP whose layers are scanned over, each rematerialised."""

    def loss(params: Tree, x: Any, y: Any) -> Any:
        def layer(h: Any, w: Any) -> tuple[Any, Any]:
            return jnp.tanh(h @ w["w"] + w["b"]), jnp.mean(h * h)

        h, sizes = lax.scan(jax.checkpoint(layer), x, params)
        return jnp.mean((h - y) ** 2) + 0.1 * jnp.sum(sizes)

    def step(params: Tree, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    r = np.random.default_rng(0)
    params = {"w": r.normal(size=(3, 8, 8)) / 3, "b": r.normal(size=(3, 8)) / 3}
    return _case(step, (params, r.normal(size=(16, 8)), r.normal(size=(16, 8))), dtype)


def recurrent(dtype: str) -> Case:
    """The gradient of a recurrent net: the weights are read in every round, the loop runs backward in time too."""

    def loss(params: Tree, xs: Any) -> Any:
        def cell(h: Any, x: Any) -> tuple[Any, Any]:
            h = jnp.tanh(x @ params["in"] + h @ params["again"])
            return h, h @ params["out"]

        h, ys = lax.scan(cell, jnp.zeros((8, 16), xs.dtype), xs, reverse=True)
        return jnp.mean(ys**2) + jnp.mean(h)

    r = np.random.default_rng(1)
    params = {
        name: r.normal(size=shape) / 4
        for name, shape in (("in", (8, 16)), ("again", (16, 16)), ("out", (16, 8)))
    }
    return _case(jax.value_and_grad(loss), (params, r.normal(size=(4, 8, 8))), dtype)


def accumulation(dtype: str) -> Case:
    """Gradients summed over microbatches: what is carried may stay unreduced."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    def step(w: Any, xs: Any) -> Any:
        def add(total: Any, x: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(w, x)), None

        total, _ = lax.scan(add, jnp.zeros_like(w), xs)
        return w - 0.1 * total

    r = np.random.default_rng(2)
    return _case(step, (r.normal(size=(8, 16)) / 3, r.normal(size=(3, 16, 8))), dtype)


def newton(dtype: str) -> Case:
    """A while loop that stops by what it computes, with a loop of its own inside and weights from outside."""

    def solve(a: Any, b: Any) -> Any:
        def going(state: Any) -> Any:
            x, n = state
            return (jnp.linalg.norm(a @ x - b) > 1e-3) & (n < 40)

        def improve(state: Any) -> Any:
            x, n = state
            x = lax.fori_loop(0, 2, lambda _, x: x - 0.3 * (a @ x - b), x)
            return x, n + 1

        return lax.while_loop(going, improve, (jnp.zeros_like(b), 0))

    r = np.random.default_rng(3)
    return _case(solve, (np.eye(8) + 0.02 * r.normal(size=(8, 8)), r.normal(size=(8, 16))), dtype)


def branches(dtype: str) -> Case:
    """Choices: of results that come from inside, from outside and as they are; differentiated; inside a loop."""

    def loss(w: Any, x: Any) -> Any:
        def double(x: Any) -> Any:
            return 2.0 * (x @ w), jnp.sum(x)

        def same(x: Any) -> Any:
            return x, 1.0

        y, scale = lax.cond(jnp.sum(x) > 0, double, same, x)
        z = lax.switch(jnp.int32(jnp.abs(y[0, 0]) * 3), [jnp.sin, lambda y: y @ w, lambda _: x], y)
        rows, _ = lax.scan(
            lambda c, r: (lax.cond(r[0] > 0, lambda c: c + r, lambda c: c * 0.5, c), None), z[0], x
        )
        return jnp.mean(z**2) * scale + jnp.sum(rows)

    r = np.random.default_rng(4)
    return _case(
        jax.value_and_grad(loss), (r.normal(size=(8, 8)) / 3, r.normal(size=(16, 8)) + 0.05), dtype
    )


def random_numbers(dtype: str) -> Case:
    """Keys that are carried and split in every round, old and typed; an output that a loop leaves as it was."""

    def walk(key: Any, old: Any, x: Any) -> Any:
        def move(state: Any, _: None) -> Any:
            key, old, x = state
            key, now = jax.random.split(key)
            noise = jax.random.normal(now, x.shape, x.dtype) + jax.random.uniform(
                old, x.shape, x.dtype
            )
            return (key, jax.random.fold_in(old, 1), x + noise), noise[0]

        (key, old, x), rows = lax.scan(move, (key, old, x), None, length=3)
        return key, old, x, rows

    r = np.random.default_rng(5)
    return _case(walk, (jax.random.key(0), jax.random.PRNGKey(1), r.normal(size=(8, 16))), dtype)


LOOPS = {
    f.__name__: f
    for f in (scan_over_layers, recurrent, accumulation, newton, branches, random_numbers)
}


@lru_cache
def loop_case(name: str, dtype: str = "float64") -> Case:
    """One of LOOPS."""
    with jax.enable_x64(dtype == "float64"):
        return LOOPS[name](dtype)


def _case(fn: Any, args: tuple[Any, ...], dtype: str) -> Case:
    def cast(leaf: Any) -> Any:
        return np.asarray(leaf, dtype) if isinstance(leaf, np.ndarray) else leaf

    return Case(fn, tuple(jax.tree.map(cast, arg) for arg in args), dtype)
