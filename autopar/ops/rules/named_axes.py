"""Rules of collectives over an axis that `vmap` has named and removed: they are reductions over dims by number."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.core.placement import Kind
from autopar.ops.rules.factor_rule import Factor, FactorRule
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import rule_for, whole
from autopar.ops.traits import declare

_KINDS: dict[str, Kind] = {"psum": "sum", "pmax": "max", "pmin": "min"}


@rule_for(*_KINDS)
def reduce_over_axis(op: OpNode) -> FactorRule:
    """out[d...] = sum (max, min) over k of x[d..., k...]; a split k leaves out unreduced; the sum is linear.

    Over an axis that still has a name, or in groups, the operator stays whole.
    """
    axes: tuple[int | str, ...] = op.params["axes"]
    gone = [axis for axis in axes if isinstance(axis, int)]
    if len(gone) < len(axes) or len(op.ins) != 1 or op.params.get("axis_index_groups") is not None:
        return whole(op)
    kind = _KINDS[op.kind]
    dims = [f"k{d}" if d in gone else f"d{d}" for d in range(op.ins[0].ndim)]
    out = [f for f in dims if f[0] == "d"]
    reduced: dict[Factor, Kind] = {f: kind for f in dims if f[0] == "k"}
    linear = linear_sets(op, (0,)) if kind == "sum" else ()
    return FactorRule.of(op, ins=[dims], outs=[out], reduced=reduced, linear=linear)


declare("pmax", "pmin", "psum", is_fusible=False)
