"""The operators that ship: what they compute, that their rules hold, that plans with them are as good as without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar import operators
from autopar._payload import Payload
from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.operators import KEEP
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.trace import trace
from tests.ops.build import Built
from tests.ops.property import MESHES, check_rule

Function = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """A call of an operator: a function of arrays of these shapes, and the same in other words."""

    function: Function
    shapes: tuple[tuple[int, ...], ...]
    reference: Function


def of_numpy(x: Any, axis: Any = -1) -> Any:
    return x / np.maximum(np.linalg.norm(x, axis=axis, keepdims=True), 1e-6)


def plain_layer_norm(x: Any, scale: Any = 1.0, bias: Any = 0.0, axis: Any = -1) -> Any:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(
        x.var(axis, keepdims=True) + 1e-6
    ) * scale + bias


CALLS = {
    "l2": Call(operators.l2_normalize, ((4, 8),), of_numpy),
    "l2 of two axes": Call(
        lambda x: operators.l2_normalize(x, axis=(0, 2)),
        ((2, 4, 8),),
        lambda x: x / np.sqrt((x * x).sum((0, 2), keepdims=True)),
    ),
    "softmax": Call(operators.softmax, ((4, 8),), jax.nn.softmax),
    "softmax of the first": Call(
        lambda x: operators.softmax(x, axis=0), ((4, 8),), lambda x: jax.nn.softmax(x, 0)
    ),
    "layer norm": Call(operators.layer_norm, ((4, 8), (8,), (8,)), plain_layer_norm),
    "layer norm with a bias": Call(
        lambda x, b: operators.layer_norm(x, bias=b, axis=1),
        ((2, 4, 8), (8,)),
        lambda x, b: plain_layer_norm(x, 1.0, b, 1),
    ),
    "rms norm": Call(
        operators.rms_norm,
        ((4, 8), (8,)),
        lambda x, scale: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale,
    ),
}
NAMES = sorted(CALLS)
MAPPED = {"softmax"}
"""Those whose tangents and maps are tried too."""


def draw(call: Call) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in call.shapes]


def built(function: Function, args: list[Any]) -> list[Built]:
    """Every operator of the trace that is a function, with the values of its operands and results."""
    with KEEP(True):
        traced = trace(function, tuple(args))
    env = dict(zip([t.id for t in traced.graph.inputs], [*args, *traced.constants], strict=True))
    found: list[Built] = []
    for op in traced.graph.ops:
        values = [
            np.asarray(t.literal, t.dtype) if t.literal is not None else np.asarray(env[t.id])
            for t in op.ins
        ]
        results = run(op, values)
        env.update(zip([t.id for t in op.outs], results, strict=True))
        if op.body is not None:
            found.append(Built(op, tuple(values), tuple(map(np.asarray, results))))
    return found


def functions_in(function: Function, args: list[Any]) -> list[OpNode]:
    """The operators of the trace that are functions; nothing is computed."""
    with KEEP(True):
        return [op for op in trace(function, tuple(args)).graph.ops if op.body is not None]


def run(op: OpNode, values: list[Any]) -> list[Any]:
    assert isinstance(op.payload, Payload)
    results = op.payload.primitive.bind(*values, **op.payload.params)
    return list(results) if op.payload.primitive.multiple_results else [results]


def squared(function: Function) -> Function:
    return lambda *args: (function(*args) ** 2 * jnp.arange(1.0, 1.0 + args[0].shape[-1])).sum()


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_its_formula_says(name: str) -> None:
    call, args = CALLS[name], draw(CALLS[name])
    expected = call.reference(*args)
    np.testing.assert_allclose(call.function(*args), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(call.function)(*args), expected, rtol=1e-4, atol=1e-5)


def test_zeros_and_large_numbers() -> None:
    assert not operators.l2_normalize(jnp.zeros((2, 4))).any()
    np.testing.assert_allclose(operators.softmax(jnp.full((2, 4), 1e4)), 0.25)


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in MAPPED)) for n in NAMES]
)
def test_every_strategy_computes_the_same(name: str) -> None:
    """Of the operator, of its gradients, of its tangents, and of all of them mapped."""
    call, args = CALLS[name], draw(CALLS[name])
    every = tuple(range(len(args)))
    gradients = jax.grad(squared(call.function), every)
    more = [np.stack([x, x + 1, x * 2, -x]) for x in args]
    functions = [(gradients, args)]
    if name in MAPPED:
        functions += [
            (lambda *xs: jax.jvp(call.function, xs, xs), args),
            (
                lambda *xs: jax.vmap(gradients, (0, *[None] * (len(xs) - 1)))(*xs),
                [more[0], *args[1:]],
            ),
        ]
    kinds: set[str] = set()
    for function, given in functions:
        for found in built(function, given):
            kinds.add(found.op.kind.partition(".")[2])
            assert check_rule(found, rule_of(found.op), MESHES[0]) > 1
    assert kinds == ({"", "vjp", "jvp"} if name in MAPPED else {"", "vjp"})


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("l2", "[-, x]"),
        ("l2 of two axes", "[x, -, -]"),
        ("softmax", "[-, x]"),
    ],
)
def test_what_is_whole_is_never_split(name: str, axis: str) -> None:
    (found,) = built(CALLS[name].function, draw(CALLS[name]))
    placed = {
        str(s.ins[0]) for s in enumerate_strategies(rule_of(found.op), DeviceMesh.of({"x": 4}))
    }
    assert axis not in placed
    assert placed - {"[-, -]", "[-, -, -]"}


# Plans ----------------------------------------------------------------------------------------------------------------

PLANNED = {
    "l2 along the only dim that divides": (operators.l2_normalize, ((3, 64),)),
    "softmax along the only dim that divides": (
        lambda x: operators.softmax(x, axis=1),
        ((5, 1024, 3),),
    ),
    "softmax": (operators.softmax, ((64, 1000),)),
    "layer norm": (operators.layer_norm, ((16, 32, 64), (64,), (64,))),
    "rms norm of odd rows": (operators.rms_norm, ((7, 4096), (4096,))),
    "its gradient": (jax.grad(squared(operators.l2_normalize)), ((3, 4096),)),
}


def planned(function: Function, shapes: Any, which: Any, mesh: Any) -> autopar.Plan:
    args = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    options = autopar.SearchOptions(operators=which)
    return autopar.plan(function, *args, cluster="8xh100", mesh=mesh, carry=None, options=options)


TWO_AXES = ("l2 along the only dim that divides", "layer norm")


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        *((name, {"x": 8}) for name in sorted(PLANNED)),
        *((name, {"x": 2, "y": 4}) for name in TWO_AXES),
    ],
)
def test_a_plan_is_at_least_as_good_as_that_of_the_expansion(name: str, mesh: Any) -> None:
    best, expanded, kept = (
        planned(*PLANNED[name], which, mesh) for which in ("best", "expanded", "kept")
    )
    assert best.objective_s <= expanded.objective_s * (1 + 1e-9)
    assert best.objective_s <= kept.objective_s * (1 + 1e-9)
    assert best.lower_bound_s <= min(expanded.lower_bound_s, kept.lower_bound_s) * (1 + 1e-9)


def test_kept_and_expanded_cost_the_same_where_both_are_split_the_same_way() -> None:
    """The price of an operator is that of what is in it."""
    for function, shapes in (PLANNED["softmax"], PLANNED["layer norm"]):
        kept, expanded = (
            planned(function, shapes, which, {"x": 8}) for which in ("kept", "expanded")
        )
        assert kept.objective_s == pytest.approx(expanded.objective_s, rel=1e-6)
        assert [row.kind for row in kept.summary.operators][-1] in ("softmax", "layer_norm")
