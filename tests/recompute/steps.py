"""Training steps whose activations may be kept or recomputed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autopar.core.graph import OpGraph
from autopar.core.recompute import Recomputed, with_recomputed
from autopar.search.recomputable import recomputable
from tests import small_models as models
from tests.equivalence.cases import GPT, Case

Tree = Any


def layer(h: Any, w: Any) -> tuple[Any, None]:
    """A dense layer with gelu."""
    return jax.nn.gelu(h @ w["w"] + w["b"]), None


def scanned(params: Tree, x: Any, y: Any) -> Any:
    """A step through scanned layers."""

    def loss(params: Tree) -> Any:
        return ((jax.lax.scan(layer, x, params)[0] - y) ** 2).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def unrolled(params: Tree, x: Any, y: Any) -> Any:
    """The same step, layer by layer."""

    def loss(params: Tree) -> Any:
        h = x
        for n in range(len(params["b"])):
            h = layer(h, jax.tree.map(lambda leaf, n=n: leaf[n], params))[0]
        return ((h - y) ** 2).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def tiny(w: Tree, x: Any) -> Any:
    """The gradients of two layers with sines: what their derivatives need is computed early and read late."""
    return jax.grad(lambda w: (jnp.sin(jnp.sin(x @ w["a"]) @ w["b"]) ** 2).sum())(w)


def messages(w: Tree, x: Any, sent: Any, received: Any) -> Any:
    """The gradients of a graph network: rows are gathered and summed by segments; windows, and sums along a dim."""

    def loss(w: Tree) -> Any:
        h = x
        for name in w:
            of_edges = jnp.tanh(jnp.concatenate([h[sent], h[received]], -1) @ w[name])
            h = jnp.sin(h + jax.ops.segment_sum(of_edges, received, len(x)))
            h = jnp.sin(jax.lax.reduce_window(h, 0.0, jax.lax.add, (1, 3), (1, 1), "SAME"))
            h = jnp.sin(jax.lax.cumlogsumexp(h, 1))
        return (h**2).mean()

    return jax.grad(loss)(w)


def arrays(width: int, layers: int, batch: int) -> tuple[Any, ...]:
    """Arguments of `scanned` and `unrolled`."""
    draw = np.random.default_rng(0)
    sizes = {"w": (layers, width, width), "b": (layers, width)}
    params = {name: draw.normal(size=size).astype(np.float32) / 4 for name, size in sizes.items()}
    return params, *(draw.normal(size=(batch, width)).astype(np.float32) for _ in range(2))


def specs(
    fn: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function with shapes in place of its arguments."""
    return fn, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), args)


@lru_cache
def case(name: str) -> Case:
    """A small case by name."""
    if name == "gpt":
        fn, args = models.loss_and_grads("gpt", **(GPT | {"layers": 2, "typed_key": True}))
        return Case(fn, args, "float32")
    if name == "tiny":
        draw = np.random.default_rng(0)
        w = {key: draw.normal(size=(8, 8)).astype(np.float32) for key in "ab"}
        return Case(tiny, (w, draw.normal(size=(16, 8)).astype(np.float32)), "float32")
    if name == "messages":
        draw = np.random.default_rng(0)
        w = {key: draw.normal(size=(16, 8)).astype(np.float32) / 2 for key in "ab"}
        edges = draw.integers(0, 16, (2, 64)).astype(np.int32)
        return Case(messages, (w, draw.normal(size=(16, 8)).astype(np.float32), *edges), "float32")
    return Case({"scanned": scanned, "unrolled": unrolled}[name], arrays(16, 3, 16), "float32")


def drawn(graph: OpGraph, seed: int, share: float = 0.5) -> tuple[Recomputed, ...]:
    """Some of what may be recomputed, such that it can be."""
    draw = random.Random(seed)
    found: list[Recomputed] = []
    for one in recomputable(graph):
        if draw.random() < share and _works(graph, [*found, one]):
            found.append(one)
    return tuple(found)


def _works(graph: OpGraph, recomputed: Sequence[Recomputed]) -> bool:
    try:
        with_recomputed(graph, recomputed)
    except ValueError:
        return False
    return True
