"""Fingerprint: one number for what a graph computes, the same in every process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

from autopar import _compat
from autopar._payload import Payload
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.trace.params import plain_params

_PLAIN = frozenset({bool, int, float, str})


def fingerprint(graph: OpGraph) -> str:
    """The sha256, in hex, of the graph's structure.

    It covers operators with their parameters and the loop bodies and branches inside them, wiring, shapes, dtypes,
    literals, inputs, outputs, carry and regions. It leaves out source lines, name stacks, input names and the values
    of hoisted constants.
    """
    return sha256(_structure(graph).encode()).hexdigest()


def _structure(graph: OpGraph) -> str:
    """The graph as text, as `repr` of nested tuples would be; that of each tensor is made once."""
    texts: dict[int, str] = {}
    types: dict[tuple[tuple[int, ...], str], str] = {}
    params: dict[int, str] = {}  # by the first operator that is alike

    def tensor(tensor: TensorInfo) -> str:
        if tensor.literal is not None:
            return repr((tensor.id, tensor.shape, tensor.dtype, repr(tensor.literal)))
        kind = tensor.shape, tensor.dtype
        if kind not in types:
            types[kind] = repr((*kind, repr(None)))[1:]
        return f"({tensor.id}, {types[kind]}"

    def tensors(side: tuple[TensorInfo, ...]) -> str:
        for one in side:
            if id(one) not in texts:
                texts[id(one)] = tensor(one)
        return _tuple([texts[id(one)] for one in side])

    def operator(op: OpNode, first: int) -> str:
        if first not in params:
            params[first] = repr(_sorted(op.params)) if op.params else "()"
        return _operator(op, tensors(op.ins), tensors(op.outs), params[first])

    return _tuple(
        [
            tensors(graph.inputs),
            _tuple(list(map(operator, graph.ops, graph.alike))),
            tensors(graph.outputs),
            repr(graph.carry),
            repr(tuple((region.id, region.kind, region.parent, _region(region.payload)) for region in graph.regions)),
            repr(graph.donated),
            repr((graph.key_inputs, graph.key_outputs)),
        ]
    )


def _operator(op: OpNode, ins: str, outs: str, params: str) -> str:
    inner = repr(_inner(op.payload.params)) if isinstance(op.payload, Payload) else "()"
    body = _structure(op.body) if op.body else "()"
    return f"({op.kind!r}, {ins}, {outs}, {params}, {op.phase!r}, {op.region!r}, {inner}, {body})"


def _tuple(members: Sequence[str]) -> str:
    """The text of a tuple whose members have these."""
    return f"({members[0]},)" if len(members) == 1 else f"({', '.join(members)})"


def _sorted(params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, repr(params[name])) for name in sorted(params))


def _region(payload: object) -> tuple[tuple[str, str], ...]:
    return _sorted(plain_params(cast("Mapping[str, Any]", payload))) if isinstance(payload, Mapping) else ()


def _inner(params: Mapping[str, Any]) -> tuple[object, ...]:
    """The jaxprs among the parameters, by name."""
    found: list[object] = []
    for name in sorted(params):
        value = params[name]
        if value is None or type(value) in _PLAIN:
            continue
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
