"""Rules of operators whose placements the user's function names itself: `search.pinned` holds them to these."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.ops.rules.elementwise import identity
from autopar.ops.rules.factor_rule import FactorRule
from autopar.ops.rules.registry import rule_for, whole
from autopar.ops.traits import declare


@rule_for("reshard", "sharding_constraint")
def constrained(op: OpNode) -> FactorRule:
    """out[d...] = x[d...]."""
    return identity(op)


@rule_for("shard_map")
def shard_map(op: OpNode) -> FactorRule:
    """Placed as the user's function says, which is no matter of rules: nothing else is known of it."""
    return whole(op)


declare("shard_map", is_fusible=False)
