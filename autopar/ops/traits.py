"""OpTraits: what is known of an operator beside its rule, by its kind; declared where the rule stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from autopar.core.graph import OpNode

Flops = Callable[[OpNode], float]


def one_per_element(op: OpNode) -> float:
    """One operation for every element of the largest operand or result."""
    return float(max((prod(tensor.shape) for tensor in (*op.ins, *op.outs)), default=0))


def no_flops(_op: OpNode) -> float:
    """None."""
    return 0.0


@dataclass(frozen=True)
class OpTraits:
    """What is known of operators of one kind.

    | trait | what it says |
    |---|---|
    | flops | the floating-point operations of the whole operator |
    | is_view | its result is its operand under another name, or repeats it: nothing is computed |
    | is_fusible | a compiler computes it inside its consumers' loop |
    | reads_fused | a compiler computes what it reads inside its own loop, though it is not fusible itself |
    | is_contraction | a product of matrices, or a convolution |
    | is_costly | more than a product for each element: it is not computed anew in several readers |
    | is_dear | a compiler would rather keep its result than compute it again |
    | is_recomputable | it may run once more in the backward pass, with the same result to the last bit |
    | is_scaling | an unreduced sum may pass through it |
    | rearranges | how its elements stand beside the operand's: "repeats", "reshapes", "moves"; None: they are others |
    | touches | what it reads of its operands: "all"; "as_written", no more than it makes; "slice", that of the first |
    | keeps_shards | it moves elements from shard to shard: of shards of one size nothing is put beside them |
    """

    flops: Flops = one_per_element
    is_view: bool = False
    is_fusible: bool = True
    reads_fused: bool = False
    is_contraction: bool = False
    is_costly: bool = False
    is_dear: bool = False
    is_recomputable: bool = False
    is_scaling: bool = False
    rearranges: Literal["repeats", "reshapes", "moves"] | None = None
    touches: Literal["all", "as_written", "slice"] = "all"
    keeps_shards: bool = False


_DEFAULT = OpTraits()
_TRAITS: dict[str, OpTraits] = {}


def declare(*kinds: str, **traits: Any) -> None:
    """Operators of `kinds` have these traits from now on, beside those declared before.

    Raises:
      TypeError: if one of them is no field of `OpTraits`.
    """
    for kind in kinds:
        _TRAITS[kind] = replace(_TRAITS.get(kind, _DEFAULT), **traits)


def traits_of(kind: str) -> OpTraits:
    """The traits of operators of `kind`; of unknown ones those of an operator that works element by element."""
    return _TRAITS.get(kind, _DEFAULT)


def work_flops(op: OpNode) -> float:
    """The floating-point operations of the whole operator; none of a view.

    A function treated as one operator has those of all operators in it, as often as its loops run them.
    """
    if op.body is not None:
        return sum(op.body.tree.weight(inner.region) * work_flops(inner) for inner in op.body.ops)
    traits = traits_of(op.kind)
    return 0.0 if traits.is_view else traits.flops(op)


def is_fusible(op: OpNode) -> bool:
    """Whether a compiler computes the operator inside its consumers' loop: element by element, or a view."""
    return op.body is None and traits_of(op.kind).is_fusible and not op.crosses_memories


def reads_fused(op: OpNode) -> bool:
    """Whether a compiler computes what the operator reads inside its own loop."""
    return is_fusible(op) or traits_of(op.kind).reads_fused


def is_rearrangement(op: OpNode) -> bool:
    """Whether `op` only rearranges the elements of its operand: linear, and it keeps every byte.

    A sum over dims of size 1, the transpose of a broadcast, is one too.
    """
    if op.kind == "reduce_sum":
        return op.ins[0].size_bytes == op.outs[0].size_bytes
    return traits_of(op.kind).rearranges in ("reshapes", "moves")


def is_cast_or_rearrangement(op: OpNode) -> bool:
    """Whether `op` only gives the elements of its operand another type, or another order."""
    return op.kind == "convert_element_type" or is_rearrangement(op)


def passes_sums(op: OpNode) -> bool:
    """Whether an all-reduce of an operand may come behind `op` rather than before it, all else permitting."""
    return traits_of(op.kind).is_scaling or is_rearrangement(op)
