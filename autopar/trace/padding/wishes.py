"""Wishes: in which dims a product wants zeros behind the true elements, taken to where they cost nothing.

What works element by element writes zeros as it writes; behind a product they would take another pass. So a wish goes
from a product through what only lays out anew, and through the batch dims of other products, up to such operators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from autopar.trace.draft import DraftOp
from autopar.trace.padding.shape import dims_taken, groups

Dims = Iterable[int]
Passed = Callable[[DraftOp, frozenset[int]], Sequence[Dims]]


def wishes(ops: Sequence[DraftOp]) -> Mapping[int, frozenset[int]]:
    """By tensor the dims in which it had better be zero behind the true elements."""
    found: dict[int, frozenset[int]] = defaultdict(frozenset)
    for op in reversed(ops):
        passed = _PASSED.get(op.kind)
        if passed is not None and op.effect is None and op.body is None:
            for tensor, dims in zip(op.ins, passed(op, found[op.outs[0].id]), strict=False):
                found[tensor.id] |= frozenset(dims)
    return found


def _product(op: DraftOp, wished: frozenset[int]) -> Sequence[Dims]:
    """Zero where it is summed over; where a batch dim of both operands is zero, that of the result is."""
    contracted, batched = op.params["dimension_numbers"]
    return [
        (*dims, *(d for e, d in enumerate(batch) if e in wished))
        for dims, batch in zip(contracted, batched, strict=True)
    ]


def _renamed(op: DraftOp, wished: frozenset[int]) -> Sequence[Dims]:
    return [[d for e, d in enumerate(dims_taken(op)) if e in wished]]


def _reshape(op: DraftOp, wished: frozenset[int]) -> Sequence[Dims]:
    """Of dims that are joined or taken apart the first ones are padded."""
    return [
        [
            before[0]
            for before, after in groups(op.ins[0].shape, op.outs[0].shape)
            if after[0] in wished
        ]
    ]


def _broadcast(op: DraftOp, wished: frozenset[int]) -> Sequence[Dims]:
    dims: Any = op.params["broadcast_dimensions"]
    return [
        [d for d, e in enumerate(dims) if e in wished and op.ins[0].shape[d] == op.outs[0].shape[e]]
    ]


def _same(_: DraftOp, wished: frozenset[int]) -> Sequence[Dims]:
    return [wished]


_PASSED: Mapping[str, Passed] = {
    "dot_general": _product,
    "transpose": _renamed,
    "squeeze": _renamed,
    "reshape": _reshape,
    "broadcast_in_dim": _broadcast,
    **dict.fromkeys(("convert_element_type", "copy", "name", "neg", "stop_gradient"), _same),
}
