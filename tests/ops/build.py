"""A case in, an OpNode with the values of its operands and results out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from autopar._payload import Payload
from autopar.core.graph import OpNode, TensorInfo
from autopar.trace import trace
from autopar.trace.params import plain_params

TRACED = frozenset({"dynamic_roll", "pallas_kernel", "roll", "splice"})
"""Kinds of operators that are no primitives of JAX."""
CALLS = {"jit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}


@dataclass(frozen=True)
class Arg:
    """Random values of a shape and element type, low <= value < high."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = -1.0
    high: float = 1.0

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        if self.dtype == "bool":
            return rng.random(self.shape) < 0.5
        if np.dtype(self.dtype).kind in "iu":
            return rng.integers(int(self.low), int(self.high), self.shape).astype(self.dtype)
        values = rng.uniform(self.low, self.high, self.shape)
        if self.dtype == "bfloat16":
            values = np.round(values * 8) / 8  # its few bits hold sums with small integers exactly
        if self.dtype.startswith("complex"):
            values = values + 1j * rng.uniform(self.low, self.high, self.shape)
        return np.asarray(values).astype(self.dtype)


@dataclass(frozen=True)
class Case:
    """A function whose jaxpr holds an equation of primitive `kind`, and its arguments."""

    kind: str
    name: str
    function: Callable[..., Any]
    args: tuple[Arg, ...]


@dataclass(frozen=True)
class Built:
    """An operator, the values of its operands, and those of its results."""

    op: OpNode
    values: tuple[Any, ...]
    results: tuple[np.ndarray, ...]


@cache
def operator_of(case: Case) -> OpNode:
    """The operator of `build(case)`; nothing is computed."""
    rng = np.random.default_rng(0)
    args = tuple(arg.draw(rng) for arg in case.args)
    if case.kind in TRACED:
        graph = trace(case.function, args).graph
        return next(op for op in graph.ops if op.kind == case.kind)

    closed = jax.make_jaxpr(case.function)(*args)
    return _op(next(equations(case.kind, closed.jaxpr)))


def equations(kind: str, jaxpr: Any) -> Iterator[Any]:
    """The equations of one primitive in a jaxpr, calls included, in the order in which they run."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == kind:
            yield eqn
        if eqn.primitive.name in CALLS:
            yield from equations(kind, eqn.params[CALLS[eqn.primitive.name]].jaxpr)


@cache
def build(case: Case) -> Built:
    """The first operator of the case's kind, with the values that it meets."""
    if case.kind in TRACED:
        return _build_traced(case)
    rng = np.random.default_rng(0)
    args = [arg.draw(rng) for arg in case.args]
    closed = jax.make_jaxpr(case.function)(*args)
    for eqn, values in run_until(case.kind, closed.jaxpr, closed.consts, args):
        results = bind(eqn.primitive, eqn.params, values)
        return Built(_op(eqn), tuple(values), tuple(raw(result) for result in results))
    raise LookupError(f"case {case.name!r}: no {case.kind!r} in {closed}")


def _build_traced(case: Case) -> Built:
    """The first operator of the case's kind in the traced graph, which is run until there."""
    rng = np.random.default_rng(0)
    args = tuple(arg.draw(rng) for arg in case.args)
    traced = trace(case.function, args)
    env = dict(zip([t.id for t in traced.graph.inputs], [*args, *traced.constants], strict=True))
    for op in traced.graph.ops:
        assert isinstance(op.payload, Payload)
        values = [
            np.asarray(t.literal, t.dtype) if t.literal is not None else env[t.id] for t in op.ins
        ]
        results = bind(op.payload.primitive, op.payload.params, values)
        if op.kind == case.kind:
            return Built(op, tuple(values), tuple(raw(result) for result in results))
        env.update(zip([t.id for t in op.outs], results, strict=True))
    raise LookupError(f"case {case.name!r}: no {case.kind!r} in {traced.graph}")


def run_until(kind: str, jaxpr: Any, consts: Any, args: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Runs a jaxpr, calls included, and yields its equations of one primitive with their operands."""
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for eqn in jaxpr.eqns:
        values = [
            np.asarray(v.val, v.aval.dtype) if isinstance(v, Literal) else env[v]
            for v in eqn.invars
        ]
        if eqn.primitive.name == kind:
            yield eqn, values
        if eqn.primitive.name in CALLS:
            inner = eqn.params[CALLS[eqn.primitive.name]]
            yield from run_until(kind, inner.jaxpr, inner.consts, values)
        env.update(zip(eqn.outvars, bind(eqn.primitive, eqn.params, values), strict=True))


def bind(primitive: Any, params: dict[str, Any], values: Any) -> list[Any]:
    """The results of a primitive, as a list."""
    results = primitive.bind(*values, **primitive.get_bind_params(params))
    return list(results) if primitive.multiple_results else [results]


def raw(value: Any) -> np.ndarray:
    """The value as numpy; a random key as the words that it consists of."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(value))
    return np.asarray(value)


def _op(eqn: Any) -> OpNode:
    numbers: dict[Any, int] = {}

    def tensor(var: Any) -> TensorInfo:
        aval = var.aval
        if isinstance(var, Literal):
            return TensorInfo(
                -1, (), str(aval.dtype), aval.dtype.itemsize, literal=np.asarray(var.val).item()
            )
        return TensorInfo(
            numbers.setdefault(var, len(numbers)),
            aval.shape,
            str(aval.dtype),
            getattr(aval.dtype, "itemsize", 8),
        )

    return OpNode(
        0,
        eqn.primitive.name,
        tuple(tensor(v) for v in eqn.invars),
        tuple(tensor(v) for v in eqn.outvars),
        plain_params(eqn.params),
        payload=Payload(eqn.primitive, dict(eqn.params)),
    )
