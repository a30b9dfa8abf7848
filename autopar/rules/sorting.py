"""Rules of operators that order a dim."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.rules.factor_rule import FactorRule
from autopar.rules.registry import rule_for


@rule_for("sort")
def sort(op: OpNode) -> FactorRule:
    """outs[d..., :] = the operands [d..., :] in the order of the first ones; the sorted dim is frozen."""
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    axis: int = op.params["dimension"]
    return FactorRule.of(op, ins=[dims] * len(op.ins), outs=[dims] * len(op.outs), frozen=[dims[axis]])


@rule_for("top_k")
def top_k(op: OpNode) -> FactorRule:
    """values[d..., k], indices[d..., k] of x[d..., n]; n and k are frozen. Without `axis` it is the last dim."""
    axis: int = op.params.get("axis", -1) % op.ins[0].ndim
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    kept = [*dims[:axis], "k", *dims[axis + 1 :]]
    return FactorRule.of(op, ins=[dims], outs=[kept, kept], frozen=[dims[axis], "k"])
