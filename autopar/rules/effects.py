"""Rules of operators that reach out of the program: callbacks to the host, and what the user has sharded by hand."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.rules.factor_rule import FactorRule
from autopar.rules.registry import rule_for, whole


@rule_for("debug_callback", "debug_print", "io_callback")
def callback(op: OpNode) -> FactorRule:
    """Results = f(operands), computed on the host for the first device only; elsewhere 0, so that the sum is right."""
    ins = [[f"i{n}.{d}" for d in range(t.ndim)] for n, t in enumerate(op.ins)]
    outs = [[f"o{n}.{d}" for d in range(t.ndim)] for n, t in enumerate(op.outs)]
    frozen = [factor for tensor in (*ins, *outs) for factor in tensor]
    if not op.outs:
        return FactorRule.of(op, ins=ins, outs=outs, frozen=frozen)
    return FactorRule.of(op, ins=ins, outs=outs, frozen=frozen, reduced={"first": "sum"}, everywhere="first")


@rule_for("shard_map")
def shard_map(op: OpNode) -> FactorRule:
    """Placed as the user's function says, which is no matter of rules: nothing else is known of it."""
    return whole(op)
