"""Pins: operators whose placements the user's function names itself, and how they are written in their parameters."""

from __future__ import annotations

PINNED = frozenset({"reshard", "sharding_constraint", "shard_map"})
"""Their parameters: `axes`, the user's mesh axes (name, size), () where the function names no axis of any mesh; `ins`
and `outs`, a Spec for each operand and result."""

Spec = tuple[tuple[str, ...] | None, ...]
"""For each dim the axes that split it; None where the dim is left open."""
