"""Rules of the boundary operators of loops and branches (`core.regions`): every dim passes, but the one counted."""

from __future__ import annotations

from dataclasses import replace

from autopar.core.graph import OpNode
from autopar.core.regions import AROUND, BOUNDARY
from autopar.ops.rules.factor_rule import FactorRule
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare


@rule_for("carry_in", "carry_out", "cond_result")
def passed_on(op: OpNode) -> FactorRule:
    """out[d...] = one of ins[d...]; linear jointly in all of them."""
    dims = [f"d{d}" for d in range(op.outs[0].ndim)]
    ins = [dims] * len(op.ins)
    return FactorRule.of(
        op, ins=ins, outs=[dims], linear=linear_sets(op, tuple(range(len(op.ins))))
    )


@rule_for("scan_slice")
def scan_slice(op: OpNode) -> FactorRule:
    """out[d...] = xs[i, d...] in the ith round; i is frozen; linear in xs.

    Of a loop in parts the first dim of a slice is the parts, which are there to be split: whole, each device would hold
    as many rounds at once as there are devices.
    """
    dims = [f"d{d}" for d in range(op.outs[0].ndim)]
    rule = FactorRule.of(
        op, ins=[["i", *dims]], outs=[dims], frozen=["i"], linear=linear_sets(op, (0,))
    )
    return replace(rule, split=frozenset(dims[:1])) if op.params.get("in_parts") else rule


@rule_for("scan_stack")
def scan_stack(op: OpNode) -> FactorRule:
    """ys[i, d...] = x[d...] of the ith round; i is frozen; linear in x."""
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    return FactorRule.of(
        op, ins=[dims], outs=[["i", *dims]], frozen=["i"], linear=linear_sets(op, (0,))
    )


@rule_for("branch_index", "while_test")
def decision(op: OpNode) -> FactorRule:
    """A scalar by which every device goes the same way; or its own, where it may leave a loop by itself."""
    if op.params.get("in_parts"):
        return FactorRule.of(op, ins=[[]], outs=[], reduced={"own": "max"}, carried={"own": [0]})
    return FactorRule.of(op, ins=[[]], outs=[])


declare(*BOUNDARY, *AROUND, is_view=True, is_fusible=False)
