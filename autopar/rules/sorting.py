"""Rules of operators that order a dim."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.rules.exchange import gathered
from autopar.rules.factor_rule import FactorRule
from autopar.rules.registry import rule_for


@rule_for("sort")
def sort(op: OpNode) -> FactorRule:
    """outs[d..., :] = the operands [d..., :] in the order of the first ones; the sorted dim is frozen.

    Any element may have to go to any device: a sort among devices sends whole shards many times, or everything at once,
    which a gather before it does already.
    """
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    axis: int = op.params["dimension"]
    return FactorRule.of(op, ins=[dims] * len(op.ins), outs=[dims] * len(op.outs), frozen=[dims[axis]])


@rule_for("top_k")
def top_k(op: OpNode) -> FactorRule:
    """values[d..., k], indices[d..., k] of x[d..., n]; k is frozen. Without `axis` it is the last dim.

    Where n is split, devices gather the k first of every shard.
    """
    axis: int = op.params.get("axis", -1) % op.ins[0].ndim
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    kept = [*dims[:axis], "k", *dims[axis + 1 :]]
    size, count = op.ins[0].shape[axis], op.outs[0].shape[axis]

    def candidates(parts: int) -> int:
        return min(count, size // parts)

    exchanged = {dims[axis]: gathered((0, axis, candidates), (2, axis, candidates))}
    return FactorRule.of(op, ins=[dims], outs=[kept, kept], frozen=["k"], exchanged=exchanged)
