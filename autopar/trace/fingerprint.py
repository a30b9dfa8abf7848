"""Fingerprint: one number for what a graph computes, the same in every process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from operator import itemgetter
from typing import Any, cast

from autopar import _compat
from autopar._payload import Payload
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.memo import once_per_graph
from autopar.trace.params import plain_params

_PLAIN = frozenset({bool, int, float, str, type(None)})
_SEVERAL = (tuple, list)


@once_per_graph
def fingerprint(graph: OpGraph) -> str:
    """The sha256, in hex, of the graph's structure.

    It covers operators with their parameters and the loop bodies and branches inside them, wiring, shapes, dtypes,
    literals, inputs, outputs, carry and regions. It leaves out source lines, name stacks, input names and the values
    of hoisted constants.
    """
    return sha256(_structure(graph).encode()).hexdigest()


def _structure(graph: OpGraph) -> str:
    """The graph as text, as `repr` of nested tuples would be; that of each tensor is made once."""
    texts: dict[int, str] = {}  # by the id of the record
    types: dict[tuple[tuple[int, ...], str], str] = {}
    beside: dict[
        tuple[int, str, int | None], str
    ] = {}  # by the first operator that is alike, phase and region

    def tensor(tensor: TensorInfo) -> str:
        if tensor.literal is not None:
            return repr((tensor.id, tensor.shape, tensor.dtype, repr(tensor.literal)))
        kind = tensor.shape, tensor.dtype
        if kind not in types:
            types[kind] = repr((*kind, repr(None)))[1:]
        if tensor.manual:
            return repr((tensor.id, *kind, tensor.manual))
        return f"({tensor.id}, {types[kind]}"

    def tensors(side: tuple[TensorInfo, ...]) -> str:
        found: list[str] = []
        for one in side:
            text = texts.get(id(one))
            if text is None:
                text = texts[id(one)] = tensor(one)
            found.append(text)
        return _tuple(found)

    def operator(op: OpNode, first: int) -> str:
        key = first, op.phase, op.region
        rest = beside.get(key)
        if rest is None:
            params = repr(_sorted(op.params)) if op.params else "()"
            rest = beside[key] = f"{params}, {op.phase!r}, {op.region!r}"
        inner = (
            repr(_inner(op.payload.params))
            if isinstance(op.payload, Payload) and op.payload.params
            else "()"
        )
        body = _structure(op.body) if op.body else "()"
        return f"({op.kind!r}, {tensors(op.ins)}, {tensors(op.outs)}, {rest}, {inner}, {body})"

    return _tuple(
        [
            tensors(graph.inputs),
            _tuple(list(map(operator, graph.ops, graph.alike))),
            tensors(graph.outputs),
            repr(graph.carry),
            repr(
                tuple(
                    (region.id, region.kind, region.parent, _region(region.payload))
                    for region in graph.regions
                )
            ),
            repr(graph.donated),
            repr((graph.key_inputs, graph.key_outputs)),
        ]
    )


def _tuple(members: Sequence[str]) -> str:
    """The text of a tuple whose members have these."""
    return f"({members[0]},)" if len(members) == 1 else f"({', '.join(members)})"


def _sorted(params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, repr(params[name])) for name in sorted(params))


def _region(payload: object) -> tuple[tuple[str, str], ...]:
    return (
        _sorted(plain_params(cast("Mapping[str, Any]", payload)))
        if isinstance(payload, Mapping)
        else ()
    )


def _inner(params: Mapping[str, Any]) -> tuple[object, ...]:
    """The jaxprs among the parameters, by name."""
    found: list[tuple[str, Any]] = []
    for name, value in params.items():
        if type(value) not in _PLAIN:
            members: Any = value if isinstance(value, _SEVERAL) else (value,)  # pyright: ignore[reportUnknownVariableType]
            found += [
                (name, one) for one in members if type(one) not in _PLAIN and _compat.is_jaxpr(one)
            ]
    return tuple((name, _jaxpr(member)) for name, member in sorted(found, key=itemgetter(0)))


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
