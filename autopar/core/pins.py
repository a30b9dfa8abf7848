"""Pins: operators whose placements the user's function names itself, and how they are written in their parameters."""

from __future__ import annotations

from autopar.core.manual import BORDERS

BY_HAND = frozenset({"shard_map", *BORDERS})
"""Those whose bodies know the axes of one mesh, and no other."""

PINNED = frozenset({"reshard", "sharding_constraint", *BY_HAND})
"""Their parameters: `axes`, the user's mesh axes (name, size), () where the function names no axis of any mesh; `ins`
and `outs`, a Spec for each operand and result."""

Spec = tuple[tuple[str, ...] | None, ...]
"""For each dim the axes that split it; None where the dim is left open."""
