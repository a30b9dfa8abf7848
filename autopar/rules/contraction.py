"""Rules of products that sum over an index."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.rules.factor_rule import FactorRule
from autopar.rules.linearity import linear_sets
from autopar.rules.registry import rule_for


@rule_for("dot_general")
def dot_general(op: OpNode) -> FactorRule:
    """lhs[b, m, k] . rhs[b, n, k] -> out[b, m, n]; a split k leaves out unreduced; linear in lhs and in rhs."""
    numbers: tuple[tuple[tuple[int, ...], ...], ...] = op.params["dimension_numbers"]
    (lhs_k, rhs_k), (lhs_b, rhs_b) = numbers
    lhs = [f"m{d}" for d in range(op.ins[0].ndim)]
    rhs = [f"n{d}" for d in range(op.ins[1].ndim)]
    for d, e in zip(lhs_b, rhs_b, strict=True):
        lhs[d] = rhs[e] = f"b{d}"
    for d, e in zip(lhs_k, rhs_k, strict=True):
        lhs[d] = rhs[e] = f"k{d}"
    out = [lhs[d] for d in lhs_b] + [f for f in lhs + rhs if f[0] in "mn"]
    return FactorRule.of(
        op, ins=(lhs, rhs), outs=(out,), reduced={lhs[d]: "sum" for d in lhs_k}, linear=linear_sets(op, (0,), (1,))
    )
