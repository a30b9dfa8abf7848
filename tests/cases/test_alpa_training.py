"""More of Alpa's acceptance tests: optimizer states split, experts, convolutions, accumulated gradients, pins."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.cost.alpa import Alpa
from autopar.search.constraints.records import Constraint, Layout, Named, Pin
from autopar.search.search import Planned, Task, search
from autopar.trace import trace
from tests import small_models as models
from tests.cases.alpa import (
    LINES,
    all_reduce,
    compiled_kinds,
    is_replicated,
    largest_difference,
    mlp,
    parameters,
    plan,
    planned_kinds,
    state_step,
)
from tests.cases.alpa_models import convolutions, expert_products, mixture_of_experts
from tests.cases.test_alpa import alpa_3, assert_kinds, assert_objective, split_dims
from tests.quick_some import one_quick

Mesh = dict[str, int]


def reduce_scatter(size_bytes: float, n: int = 4) -> float:
    return 1 + (n - 1) / n * size_bytes + 0.001


def all_gather(size_bytes: float, n: int = 4) -> float:
    return 1 + (n - 1) / n * size_bytes + 0.1


def all_to_all(size_bytes: float, n: int = 4) -> float:
    return 1 + (n - 1) / n**2 * size_bytes * (n / 2) + 0.001


def at(path: str, placement: Placement) -> Constraint:
    """The input or output there lies so."""
    return Pin(Named(path), Layout(placement.dims))


def pinned(
    fn: Any, args: tuple[Any, ...], mesh: Mesh, pins: tuple[Constraint, ...], carry: Any = None
) -> Planned:
    """The plan of `fn` under Alpa's pricing whose inputs and outputs are placed as `pins` says."""
    graph = trace(fn, args, carry=carry).graph
    ones = (1.0,) * len(mesh)
    task = Task(graph, lambda _, m: Alpa(m, ones, ones), constraints=pins)
    return search(task, [DeviceMesh.of(mesh)])


@pytest.mark.parametrize("mesh", one_quick(LINES), ids=str)
def test_case_18_mixture_of_experts(mesh: Mesh) -> None:
    """Tokens go to their experts and back, forward and backward; all but the experts is data parallel."""
    step, args = state_step(mixture_of_experts(), "adam")
    found = plan(step, args, mesh)
    width, experts = 64, 16
    replicated = [width * 3 * width, 3 * width, width * width, width, *[width] * 4, width * experts]
    sent = 64 * 16 * width * 2 * 4
    assert_objective(found, 4 * all_to_all(sent) + sum(all_reduce(4 * size) for size in replicated))
    assert_kinds(found, all_to_all=4, all_reduce=1)
    for name, placement in parameters(found).items():
        if name.endswith(("['wi']", "['wo']")):
            assert split_dims(placement) == (0,)
        else:
            assert is_replicated(placement)


@pytest.mark.slow
def test_case_18_computes_what_the_layer_does() -> None:
    step, args = state_step(mixture_of_experts(batch=8), "adam")
    assert largest_difference(plan(step, args, {"x": 4}), step, args, "'m'") < 1e-4


@pytest.mark.parametrize("mesh", one_quick(LINES, 1), ids=str)
def test_case_21_convolutions(mesh: Mesh) -> None:
    """Data parallel: per batch norm one all-reduce of both statistics and one of their gradients, one of gradients."""
    step, args = state_step(convolutions(3, 16, 16, 4), "momentum")
    found = plan(step, args, mesh)
    kernel, channels, statistics = 3 * 3 * 4 * 4 * 4, 4 * 4, 3 * 4
    assert_objective(found, 3 * all_reduce(kernel) + (6 + statistics) * all_reduce(channels))
    assert_kinds(found, all_reduce=7)
    assert all(map(is_replicated, parameters(found).values()))
    assert largest_difference(found, step, args) < 1e-3


def test_case_24_expert_products() -> None:
    """All-to-alls and all-reduces only where nothing may be gathered, as Alpa has it; with gathers it costs less."""
    step, args = state_step(expert_products(), "sgd")
    mesh = {"x": 2, "y": 2}
    found = plan(step, args, mesh, alpa_3(steps=("all_reduce", "all_to_all", "slice", "mask")))
    kinds = planned_kinds(found)
    assert set(kinds) == {"all_to_all", "all_reduce"}
    assert compiled_kinds(found) == kinds
    assert found.gap == 0
    assert plan(step, args, mesh, alpa_3()).objective_s <= found.objective_s
    assert largest_difference(found, step, args) < 1e-4


def test_case_6_optimizer_state_split() -> None:
    """ZeRO-2: one reduce-scatter of 12 gradients, one all-gather of the updated parameters, nothing all-reduced.

    Case 1 with the moments of Adam split over the devices, and every parameter whole on each.
    """
    step, args = state_step(mlp(6, 32, 256), "adam")
    inputs = trace(step, args).graph.inputs
    moments = [t for t in inputs if "['opt']" in t.name and t.ndim]
    pins = [at(t.name, Placement((("x",), *((),) * (t.ndim - 1)))) for t in moments]
    pins += [at(t.name, Placement(((),) * t.ndim)) for t in inputs if "['params']" in t.name]
    found = plan(step, args, {"x": 4}, constraints=pins)
    assert len(moments) == 24
    assert_objective(
        found, 6 * sum(reduce_scatter(size) + all_gather(size) for size in (32 * 32 * 4, 32 * 4))
    )
    assert_kinds(found, reduce_scatter=1, all_gather=1)
    assert [len(move.ins) for move in found.program().collectives] == [12, 12]
    assert all(map(is_replicated, parameters(found).values()))
    assert largest_difference(found, step, args) < 1e-3


def test_case_28_gradient_accumulation() -> None:
    """The sum over two micro-batches stays unreduced from round to round: one all-reduce, behind the loop."""
    model = mlp(2, 16, 256)
    state = {"params": model.params, "opt": models.momentum_init(model.params)}

    def update(state: Any, grads: Any) -> Any:
        params, opt = models.momentum(state["params"], grads, state["opt"], lr=1e-2)
        return {"params": params, "opt": opt}

    def whole(state: Any, *batch: Any) -> Any:
        return update(state, jax.grad(model.loss)(state["params"], None, *batch))

    def accumulated(state: Any, *batch: Any) -> Any:
        def add(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(
                jnp.add, total, jax.grad(model.loss)(state["params"], None, *part)
            ), None

        parts = tuple(array.reshape(2, -1, *array.shape[1:]) for array in batch)
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, state["params"]), parts)
        return update(state, jax.tree.map(lambda gradient: gradient / 2, total))

    found = plan(accumulated, (state, *model.batch), {"x": 1, "y": 4})
    assert_objective(found, 2 * all_reduce(16 * 16 * 4) + 2 * all_reduce(16 * 4))
    assert_kinds(found, all_reduce=1)
    assert [row.runs for row in found.collectives] == [1.0]
    assert largest_difference(found, whole, (state, *model.batch)) < 5e-4


DATA, MODEL, BOTH, NONE = (
    Placement(dims) for dims in ((("d",), ()), ((), ("m",)), (("d",), ("m",)), ((), ()))
)


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ((MODEL, MODEL), [(6, 2), (6, 2)]),
        ((DATA, BOTH), [(3, 4), (3, 2)]),
        ((NONE, DATA), [(6, 4), (3, 4)]),
    ],
    ids=str,
)
def test_case_29_pinned_inputs(
    pins: tuple[Placement, ...], expected: list[tuple[int, ...]]
) -> None:
    args = (np.ones((6, 4), "float32"),) * 2
    found = pinned(lambda a, b: a + b, args, {"d": 2, "m": 2}, tuple(map(at, ("a", "b"), pins)))
    assert local_shapes(found, found.program.inputs) == expected


def test_case_29_pinned_outputs() -> None:
    args = (np.ones((6, 4), "float32"),)
    pins = tuple(
        at(f"output[{n}]", placement) for n, placement in enumerate((DATA, NONE, MODEL, BOTH))
    )
    found = pinned(lambda a: (a**2, a + 1, a * 2, a / 2), args, {"d": 2, "m": 2}, pins)
    assert local_shapes(found, found.program.outputs) == [(3, 4), (6, 4), (6, 2), (3, 2)]


def local_shapes(found: Planned, ids: tuple[int, ...]) -> list[tuple[int, ...]]:
    values = [found.program.values[v] for v in ids]
    return [v.placement.local_shape(v.tensor.shape, found.program.mesh) for v in values]
