"""rereads: what collectives leave in pieces, and an operator reads again and again."""

from __future__ import annotations

from math import prod

from autopar.core.graph import OpNode
from autopar.core.program import Compute, Move, ShardedProgram

PIECED = ("all_to_all",)
"""Collectives whose results come in pieces that are put side by side."""
REPEATING = frozenset(
    (
        "gather",
        "reduce_window",
        "reduce_window_max",
        "reduce_window_min",
        "reduce_window_sum",
        "select_and_gather_add",
        "select_and_scatter_add",
    )
)
"""Operators that may read an element more than once, each time from where it is; broadcasts do, too."""


def reread(program: ShardedProgram) -> frozenset[int]:
    """The values that a collective leaves in pieces and that an operator reads again and again.

    XLA's CPU compiler puts the pieces together within the kernels that read them, which ask of every element that they
    read in which piece it is: a table of 16,384 rows of 8 floats in 8 pieces, of which 49,152 are gathered, takes 2.4
    ms so, and 1.2 where it is written first (8 devices, 2 cores, jax 0.10.2).
    """
    moved = {
        v for i in program.instructions if isinstance(i, Move) and i.kind in PIECED for v in i.outs
    }
    if not moved:
        return frozenset()
    reading = (i for i in program.instructions if isinstance(i, Compute) and _repeats(i.op))
    return frozenset(moved.intersection(v for i in reading for v in i.ins))


def _repeats(op: OpNode) -> bool:
    is_spread = op.kind == "broadcast_in_dim" and prod(op.outs[0].shape) > prod(op.ins[0].shape)
    return is_spread or op.kind in REPEATING
