"""Merge: what is computed twice from the same operands is computed once, as XLA's elimination of common subexpressions.

A function that writes `(x - m) * (x - m)`, and the derivative of one that writes it once, have such operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from autopar._payload import Payload
from autopar.core.graph import TensorInfo
from autopar.core.regions import BOUNDARY
from autopar.trace.draft import DraftOp

_KEPT_APART = frozenset({"optimization_barrier", "pure_callback"})


def merged(
    ops: Sequence[DraftOp], outputs: Sequence[TensorInfo]
) -> tuple[list[DraftOp], list[TensorInfo]]:
    """`ops` without those that repeat an earlier one of their region, line and scope; results read that one then.

    What depends on nothing but numbers is left as it is: it takes nothing to make it where it is read, and one mask for
    all layers would live as long as they do. So is what has an effect, or says that it is to be kept apart.
    """
    instead: dict[int, TensorInfo] = {}
    numbers: set[int] = set()
    first: dict[tuple[object, ...], DraftOp] = {}
    alike: dict[tuple[object, ...], dict[str, list[DraftOp]]] = {}
    left: list[DraftOp] = []
    for read in ops:
        op = (
            replace(read, ins=tuple(instead.get(t.id, t) for t in read.ins))
            if _reads(read, instead)
            else read
        )
        if op.kind in BOUNDARY or op.kind in _KEPT_APART or op.effect or not op.outs:
            left.append(op)
        elif all(t.literal is not None or t.id in numbers for t in op.ins):
            numbers.update(t.id for t in op.outs)
            left.append(op)
        else:
            key = (op.kind, tuple([t.id for t in op.ins]), op.region, op.source, op.scope)
            known = first.setdefault(key, op)
            if known is not op:
                known = _known(alike.setdefault(key, {repr(known.params): [known]}), op)
            if known is op:
                left.append(op)
            else:
                instead.update(
                    {mine.id: its for mine, its in zip(op.outs, known.outs, strict=True)}
                )

    return left, [instead.get(tensor.id, tensor) for tensor in outputs]


def _reads(op: DraftOp, instead: dict[int, TensorInfo]) -> bool:
    return any(tensor.id in instead for tensor in op.ins)


def _known(by_params: dict[str, list[DraftOp]], op: DraftOp) -> DraftOp:
    """The first operator that does what `op` does; `op` itself, which is known from then on, if there is none."""
    candidates = by_params.setdefault(repr(op.params), [])
    for known in candidates:
        if _is_same(known.payload, op.payload):
            return known
    candidates.append(op)
    return op


def _is_same(one: Payload | None, other: Payload | None) -> bool:
    """Whether JAX runs both alike: also by what of their parameters is no plain data, which is compared as objects.

    Those that run nothing, of one kind and with equal plain parameters, are alike.
    """
    if one is None or other is None:
        return one is other
    if one.primitive is not other.primitive or one.params.keys() != other.params.keys():
        return False
    return all(_is_equal(value, other.params[name]) for name, value in one.params.items())


def _is_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, dict | list):
        return False
    if isinstance(one, tuple):
        both = cast("tuple[Any, ...]", one), cast("tuple[Any, ...]", other)
        return len(both[0]) == len(both[1]) and all(map(_is_equal, *both))
    return (one == other) is True
