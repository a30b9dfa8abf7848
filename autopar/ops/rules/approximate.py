"""Rules of operators that may leave out a part of the answer."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.ops.rules.factor_rule import FactorRule
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare


@rule_for("approx_top_k")
def approx_top_k(op: OpNode) -> FactorRule:
    """values[d..., k], indices[d..., k] of x[d..., n]; n and k are frozen: which are found depends on all of n."""
    axis: int = op.params["reduction_dimension"] % op.ins[0].ndim
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    kept = [*dims[:axis], "k", *dims[axis + 1 :]]
    return FactorRule.of(op, ins=[dims], outs=[kept, kept], frozen=[dims[axis], "k"])


declare("approx_top_k", is_fusible=False)
