"""Rules of operators that order a dim."""

from __future__ import annotations

from autopar.core.columnsort import columns, is_numbered
from autopar.core.graph import OpNode
from autopar.core.strategy import NEXT, PREVIOUS
from autopar.ops.rules.exchange import gathered
from autopar.ops.rules.factor_rule import FactorRule, Traffic
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare

_INDEX_BYTES = 4
_MOST_ELEMENTS = 2**31 - 1
"""Elements are numbered in 32 bits; a larger dim is not split."""


@rule_for("sort")
def sort(op: OpNode) -> FactorRule:
    """outs[d..., :] = the operands [d..., :] in the order of the first ones.

    Where the sorted dim is split, devices sort their shards and deal them out among each other, four times in all
    (`core.columnsort`). What is equal stays in order: the place of every element is sent with it, if that can be seen.
    """
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    axis: int = op.params["dimension"]
    size = op.ins[0].shape[axis]
    numbered = is_numbered(op)

    def traffic(parts: int) -> tuple[Traffic, ...] | None:
        shape = columns(size, parts) if size <= _MOST_ELEMENTS else None
        if shape is None:
            return None

        tensors = [(n, tensor.itemsize) for n, tensor in enumerate(op.ins)]
        dealt = [*tensors, (0, _INDEX_BYTES)] if numbered else tensors
        found = [
            Traffic("all_to_all", n, axis, shape.filled, itemsize=itemsize)
            for n, itemsize in (*dealt, *dealt)
        ]
        found += [
            Traffic("permute", n, axis, shape.half, NEXT, itemsize=itemsize)
            for n, itemsize in dealt
        ]
        found += [Traffic("permute", n, axis, shape.half, PREVIOUS) for n, _ in tensors]
        found += [Traffic("permute", n, axis, shape.moved, NEXT) for n, _ in tensors]
        return tuple(found)

    return FactorRule.of(
        op, ins=[dims] * len(op.ins), outs=[dims] * len(op.outs), exchanged={dims[axis]: traffic}
    )


@rule_for("top_k")
def top_k(op: OpNode) -> FactorRule:
    """values[d..., k], indices[d..., k] of x[d..., n]; k is frozen. Without `axis` it is the last dim.

    Where n is split, devices gather the k first of every shard.
    """
    axis: int = op.params.get("axis", -1) % op.ins[0].ndim
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    kept = [*dims[:axis], "k", *dims[axis + 1 :]]
    size = op.ins[0].shape[axis]
    count = op.outs[0].shape[axis]

    def candidates(parts: int) -> int:
        return min(count, size // parts)

    exchanged = {dims[axis]: gathered((0, axis, candidates), (2, axis, candidates))}
    return FactorRule.of(op, ins=[dims], outs=[kept, kept], frozen=["k"], exchanged=exchanged)


declare("sort", "top_k", is_fusible=False)
