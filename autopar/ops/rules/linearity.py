"""Through which operands unreduced values may pass: shared by the rules of linear operators."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.core.placement import Kind


def is_summable(dtype: str) -> bool:
    """Whether values of this element type can be split into summands: booleans and random keys cannot."""
    return dtype != "bool" and not dtype.startswith("key<")


def kind_of_sum(dtype: str) -> Kind:
    """How devices' parts of a sum of this element type are combined: a sum of booleans is true where any of them is."""
    return "sum" if is_summable(dtype) else "max"


def linear_sets(op: OpNode, *sets: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Those of `sets` (operands in which `op` is jointly linear) through which unreduced values can pass.

    A literal is never unreduced: a set with a literal other than 0 is dropped, and a literal 0 is its own summand
    and leaves its set. A set without operands remains only where all operands are literals: zeros made on every
    device are a value still to be summed. A set that has only some of the places of one tensor, or of multiples of it,
    is dropped too: a square of parts times the whole is right up to rounding, but can come out below zero.
    """
    if not all(is_summable(tensor.dtype) for tensor in op.outs):
        return ()

    kept: dict[tuple[int, ...], None] = {}
    for operands in sets:
        if any(op.ins[i].literal or not is_summable(op.ins[i].dtype) for i in operands):
            continue
        if {op.ins[i].root for i in operands} & {
            op.ins[i].root for i in range(len(op.ins)) if i not in operands
        }:
            continue
        carried = tuple(i for i in operands if op.ins[i].literal is None)
        if carried or all(tensor.literal is not None for tensor in op.ins):
            kept[carried] = None

    return tuple(kept)
