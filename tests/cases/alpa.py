"""Alpa's own test models in plain JAX, its closed forms, and the plans of both.

Facts from the tests of Alpa 0.2 (tests/shard_parallel): float32, alpha and beta 1 unless said. Its training steps
return the new state and no loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import autopar
from autopar.core.placement import Placement
from autopar.cost.alpa import alpa_pricing
from autopar.cost.pricing import MakePricing
from autopar.inspect.hlo import collectives_of, compile_unmerged
from tests import small_models as models

Kinds = Counter[str]
LINES = [{"x": 4, "y": 1}, {"x": 1, "y": 4}]
"""The meshes (4, 1) and (1, 4)."""


def all_reduce(size_bytes: float, n: int = 4, alpha: float = 1.0, beta: float = 1.0) -> float:
    """Alpa's price of an all-reduce over n devices, written down here once more."""
    return alpha + beta * 2 * (n - 1) / n * size_bytes + 0.01


def plan(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    mesh: dict[str, int],
    pricing: MakePricing | None = None,
    **settings: Any,
) -> Any:
    """The plan of `fn` on as many devices, under Alpa's pricing with all constants 1, or another one."""
    cluster = f"cpu{prod(mesh.values())}"
    pricing = pricing or alpa_pricing((1.0,) * len(mesh), (1.0,) * len(mesh))
    return autopar.plan(fn, *args, cluster=cluster, mesh=mesh, pricing=pricing, **settings)


def planned_kinds(plan: Any) -> Kinds:
    """How many collectives of each kind the plan's program has, after fusion; reductions of scalars are not counted."""
    return Counter(row.kind for row in plan.collectives if row.size_bytes > 4)


def compiled_kinds(plan: Any) -> Kinds:
    """The same, of the program that XLA compiles for the first devices present, its own combiner off."""
    runner = plan.compile(devices=jax.devices()[: plan.mesh.size])
    compiled = compile_unmerged(runner.lower(*example_args(plan.bound.traced)))
    return Counter(c.kind for c in collectives_of(compiled) if c.size_bytes > 4)


def example_args(traced: Any) -> tuple[Any, ...]:
    inputs = traced.graph.inputs[: traced.in_tree.num_leaves]
    specs = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in inputs]
    args, kwargs = jax.tree.unflatten(traced.in_tree, specs)
    assert not kwargs
    return args


def largest_difference(
    plan: Any, fn: Callable[..., Any], args: tuple[Any, ...], leaf: str = ""
) -> float:
    """Between what the planned program computes and what `fn` does, over the results whose path holds `leaf`; each
    relative to its leaf's largest value."""
    ours = plan.compile(devices=jax.devices()[: plan.mesh.size])(*args)
    found, wanted = (
        jax.tree_util.tree_leaves_with_path(tree) for tree in (ours, jax.jit(fn)(*args))
    )
    worst = 0.0
    for (path, ours_leaf), (_, theirs) in zip(found, wanted, strict=True):
        if leaf in jax.tree_util.keystr(path):
            a, b = np.asarray(ours_leaf, np.float64), np.asarray(theirs, np.float64)
            worst = max(worst, float(np.max(np.abs(a - b)) / np.max(np.abs(b))))
    return worst


def is_replicated(placement: Placement) -> bool:
    return not placement.split_axes


def parameters(plan: Any) -> dict[str, Placement]:
    """The placements of the parameters, by path."""
    return {name: p for name, p in plan.placements.items() if "['params']" in name}


# Models ---------------------------------------------------------------------------------------------------------------


def state_step(model: models.Model, optimiser: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`model` with `optimiser` as step(state, *batch) -> new state."""
    initial, update = models.OPTIMISERS[optimiser]

    def step(state: Any, *batch: Any) -> Any:
        rest, key = {}, None
        if "key" in state:
            rest["key"], key = jax.random.split(state["key"])
        grads = jax.grad(model.loss)(state["params"], key, *batch)
        params, opt = update(state["params"], grads, state["opt"])
        return {"params": params, "opt": opt, **rest}

    return step, (model.state | {"opt": initial(model.params)}, *model.batch)


def mlp(layers: int, width: int, batch: int, bias: bool = True) -> models.Model:
    """Dense layers of one width with relu between, squared error; parameters in order of the layers."""
    draw = np.random.default_rng(0)
    params = [models.dense_init(draw, width, width, "float32") for _ in range(layers)]
    if not bias:
        params = [{"kernel": layer["kernel"]} for layer in params]
    x, target = (draw.normal(size=(batch, width)).astype("float32") for _ in range(2))

    def dense(layer: Any, x: jax.Array) -> jax.Array:
        return models.dense(layer, x) if bias else x @ layer["kernel"]

    def loss(params: Any, _key: None, x: jax.Array, target: jax.Array) -> jax.Array:
        for layer in params[:-1]:
            x = jax.nn.relu(dense(layer, x))
        return jnp.mean((dense(params[-1], x) - target) ** 2)

    return models.Model(loss, params, (x, target))


def dropout(width: int = 16) -> models.Model:
    """Dense, dropout, Dense on [32, 32, width], squared error."""
    draw = np.random.default_rng(0)
    params = [models.dense_init(draw, width, width, "float32") for _ in range(2)]
    x, target = (draw.normal(size=(32, 32, width)).astype("float32") for _ in range(2))

    def loss(params: Any, key: jax.Array, x: jax.Array, target: jax.Array) -> jax.Array:
        hidden = models.drop(models.dense(params[0], x), key, 0.1)
        return jnp.mean((models.dense(params[1], hidden) - target) ** 2)

    return models.Model(loss, params, (x, target), models.new_key())
