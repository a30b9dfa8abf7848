"""Rules of reductions over whole dims."""

from __future__ import annotations

from collections.abc import Collection

from autopar.core.graph import OpNode, TensorInfo
from autopar.core.placement import Kind
from autopar.ops.rules.exchange import gathered
from autopar.ops.rules.factor_rule import Factor, FactorRule
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare

_KINDS: dict[str, Kind] = {
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "max",
    "reduce_and": "min",
}


def _factors(
    tensor: TensorInfo, axes: Collection[int]
) -> tuple[list[Factor], list[Factor], list[Factor]]:
    """The factors of the operand, of the result, and those that are reduced."""
    dims = [f"k{d}" if d in axes else f"d{d}" for d in range(tensor.ndim)]
    return dims, [f for f in dims if f[0] == "d"], [f for f in dims if f[0] == "k"]


@rule_for("reduce_sum")
def reduce_sum(op: OpNode) -> FactorRule:
    """out[d...] = sum over k of x[d..., k...]; a split k leaves out unreduced; linear in x."""
    dims, out, gone = _factors(op.ins[0], op.params["axes"])
    return FactorRule.of(
        op, ins=[dims], outs=[out], reduced=dict.fromkeys(gone, "sum"), linear=linear_sets(op, (0,))
    )


@rule_for(*_KINDS)
def reduce_extremum(op: OpNode) -> FactorRule:
    """out[d...] = max over k of x[d..., k...] (booleans: or); a maximum still to be taken may pass.

    Bit-wise reductions of integers are no extrema: their k is frozen.
    """
    kind = _KINDS[op.kind]
    dims, out, gone = _factors(op.ins[0], op.params["axes"])
    if op.kind in ("reduce_or", "reduce_and") and op.ins[0].dtype != "bool":
        return FactorRule.of(op, ins=[dims], outs=[out], frozen=gone)
    reduced: dict[Factor, Kind] = dict.fromkeys([*gone, kind], kind)
    return FactorRule.of(op, ins=[dims], outs=[out], reduced=reduced, carried={kind: (0,)})


@rule_for("reduce_prod", "reduce_xor")
def reduce_frozen(op: OpNode) -> FactorRule:
    """out[d...] = f(x[d..., all k]); k is never split."""
    dims, out, gone = _factors(op.ins[0], op.params["axes"])
    return FactorRule.of(op, ins=[dims], outs=[out], frozen=gone)


@rule_for("argmax", "argmin")
def reduce_place(op: OpNode) -> FactorRule:
    """out[d...] = the smallest k at which x[d..., k] is extremal; where k is split, devices gather their winners."""
    dims, out, gone = _factors(op.ins[0], op.params["axes"])
    (axis,) = op.params["axes"]
    exchanged = {gone[0]: gathered((0, axis, lambda _: 1), (1, None, lambda _: 1))}
    return FactorRule.of(op, ins=[dims], outs=[out], exchanged=exchanged)


@rule_for("reduce")
def reduce(op: OpNode) -> FactorRule:
    """outs[d...] = a function of several operands [d..., all k] and as many scalar initial values; k is frozen."""
    count = len(op.outs)
    dims, out, gone = _factors(op.ins[0], op.params["dimensions"])
    return FactorRule.of(op, ins=[dims] * count + [[]] * count, outs=[out] * count, frozen=gone)


_REDUCTIONS = (
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "reduce_xor",
)

declare("reduce", *_REDUCTIONS, is_recomputable=True)
declare("argmax", "argmin", *_REDUCTIONS, is_fusible=False)
declare(*_REDUCTIONS, reads_fused=True)
