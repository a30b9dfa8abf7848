"""Rules of what stands in a shard_map only, along the axes that are searched: its borders and collectives."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.core.manual import BORDERS, COLLECTIVES, INDEX
from autopar.ops.rules.elementwise import identity
from autopar.ops.rules.factor_rule import Factor, FactorRule
from autopar.ops.rules.registry import rule_for, whole
from autopar.ops.traits import declare, no_flops

_EXTREMES = frozenset({"pmax", "pmin"})


@rule_for(*BORDERS)
def border(op: OpNode) -> FactorRule:
    """Placed as the user's specs say: `search.by_hand` makes its strategies."""
    return whole(op)


@rule_for(INDEX)
def index(op: OpNode) -> FactorRule:
    """The position along the manual axes: a number."""
    return whole(op)


@rule_for(*COLLECTIVES)
def collective(op: OpNode) -> FactorRule:
    """out[d...] = what a collective makes of x[d...] at all positions along the manual axes.

    Dims that it splits or joins are frozen, all others are the same index on both sides. Where none is, it is linear
    in x, unless it finds the largest or the smallest.
    """
    before, after = op.params["dims"]
    frozen: list[Factor] = [*[f"i{d}" for d in before], *[f"o{d}" for d in after]]
    ins, outs = ([f"d{n}" for n in range(tensor.ndim)] for tensor in (op.ins[0], op.outs[0]))
    if not before and not after and op.params["primitive"] not in _EXTREMES:
        return identity(op)

    if len(ins) == len(outs):
        changed = {*before, *after}
        frozen = [*[f"i{d}" for d in changed], *[f"o{d}" for d in changed]]
        ins = [f"i{d}" if d in changed else name for d, name in enumerate(ins)]
        outs = [f"o{d}" if d in changed else name for d, name in enumerate(outs)]
    elif len(outs) > len(ins):
        outs = [*ins[: after[0]], f"o{after[0]}", *ins[after[0] :]]
    else:
        ins = [*outs[: before[0]], f"i{before[0]}", *outs[before[0] :]]

    return FactorRule.of(op, ins=[ins], outs=[outs], frozen=frozen)


declare(*BORDERS, flops=no_flops)
declare(INDEX, is_view=True)
declare(*COLLECTIVES, is_view=True, is_fusible=False)
