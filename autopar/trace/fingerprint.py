"""Fingerprint: one number for what a graph computes, the same in every process."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, cast

from autopar import _compat
from autopar._payload import Payload
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.trace.params import plain_params


def fingerprint(graph: OpGraph) -> str:
    """The sha256, in hex, of the graph's structure.

    It covers operators with their parameters and the loop bodies and branches inside them, wiring, shapes, dtypes,
    literals, inputs, outputs, carry and regions. It leaves out source lines, name stacks, input names and the values
    of hoisted constants.
    """
    return sha256(repr(_structure(graph)).encode()).hexdigest()


def _structure(graph: OpGraph) -> tuple[object, ...]:
    return (
        tuple(_tensor(tensor) for tensor in graph.inputs),
        tuple(_operator(op) for op in graph.ops),
        tuple(_tensor(tensor) for tensor in graph.outputs),
        graph.carry,
        tuple((region.id, region.kind, region.parent, _region(region.payload)) for region in graph.regions),
        graph.donated,
        (graph.key_inputs, graph.key_outputs),
    )


def _tensor(tensor: TensorInfo) -> tuple[object, ...]:
    return (tensor.id, tensor.shape, tensor.dtype, repr(tensor.literal))


def _operator(op: OpNode) -> tuple[object, ...]:
    ins, outs = (tuple(_tensor(tensor) for tensor in side) for side in (op.ins, op.outs))
    inner = _inner(op.payload.params) if isinstance(op.payload, Payload) else ()
    body = _structure(op.body) if op.body else ()
    return (op.kind, ins, outs, _sorted(op.params), op.phase, op.region, inner, body)


def _sorted(params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, repr(params[name])) for name in sorted(params))


def _region(payload: object) -> tuple[tuple[str, str], ...]:
    return _sorted(plain_params(cast("Mapping[str, Any]", payload))) if isinstance(payload, Mapping) else ()


def _inner(params: Mapping[str, Any]) -> tuple[object, ...]:
    """The jaxprs among the parameters, by name."""
    found: list[object] = []
    for name in sorted(params):
        value = params[name]
        members: tuple[Any, ...] = tuple(value) if isinstance(value, tuple | list) else (value,)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        found += [(name, _jaxpr(member)) for member in members if _compat.is_jaxpr(member)]
    return tuple(found)


def _jaxpr(jaxpr: Any) -> tuple[object, ...]:
    """Equations with their variables numbered in order of appearance; names of variables mean nothing."""
    inner = jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr
    number: dict[Any, int] = {}

    def name(atom: Any) -> object:
        if _compat.is_literal(atom):
            return f"{atom.aval.str_short()}={atom.val!r}"
        return number.setdefault(atom, len(number)), atom.aval.str_short()

    binders = tuple(name(var) for var in (*inner.constvars, *inner.invars))
    equations = tuple(
        (
            eqn.primitive.name,
            tuple(name(atom) for atom in eqn.invars),
            tuple(name(var) for var in eqn.outvars),
            _sorted(plain_params(eqn.params)),
            _inner(eqn.params),
        )
        for eqn in inner.eqns
    )
    return (binders, equations, tuple(name(atom) for atom in inner.outvars))
