"""Rules of operators that call back to the host: one device does it, with whole operands."""

from __future__ import annotations

from dataclasses import replace

from autopar.core.graph import OpNode
from autopar.ops.rules.factor_rule import FactorRule
from autopar.ops.rules.registry import rule_for, whole
from autopar.ops.traits import declare


@rule_for("debug_callback", "debug_print", "io_callback")
def callback(op: OpNode) -> FactorRule:
    """Results = f(operands), computed on the host for the first device only; elsewhere 0, so that the sum is right."""
    return _once(op)


@rule_for("pure_callback", yields=True)
def pure_callback(op: OpNode) -> FactorRule:
    """Results = f(operands), computed on the host once, for the first device; elsewhere 0, so that the sum is right.

    A rule that is registered for it takes its place: then every device calls with what it holds.
    """
    return _once(op)


def _once(op: OpNode) -> FactorRule:
    rule = whole(op)
    if not op.outs:
        return rule
    return replace(
        rule, sizes={**rule.sizes, "first": 0}, reduced={"first": "sum"}, everywhere="first"
    )


declare("pure_callback", is_fusible=False)
