"""Rules of running sums, products and extrema."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.ops.rules.exchange import gathered
from autopar.ops.rules.factor_rule import FactorRule
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare


@rule_for("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def cumulative(op: OpNode) -> FactorRule:
    """out[d..., k] = f(x[d..., 0], ..., x[d..., k]), or from k to the end; the sum is linear.

    Where k is split, devices gather the totals of all shards.
    """
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    axis: int = op.params["axis"]
    linear = linear_sets(op, (0,)) if op.kind == "cumsum" else ()
    exchanged = {dims[axis]: gathered((0, axis, lambda _: 1))}
    return FactorRule.of(op, ins=[dims], outs=[dims], linear=linear, exchanged=exchanged)


declare(
    "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", is_fusible=False, is_recomputable=True
)
