"""Hoist: what is moved out of loops that do not change what it reads, as XLA's `WhileLoopInvariantCodeMotion` does."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.core.program import Compute, Move
from autopar.core.regions import CROSSING

_IDLE = frozenset({"broadcast_in_dim", "iota", "rev", "slice", "split", "transpose", "unstack"})
_IDLE_VIEWS = frozenset({"reshape", "squeeze", "expand_dims"})


def may_leave(op: OpNode) -> bool:
    """Whether an operator may run before the loop that it stands in, if its operands are there."""
    return op.effect is None and op.kind not in CROSSING and op.kind != "while_test"


def is_idle(instruction: Compute | Move) -> bool:
    """Whether it is not moved for its own sake, but together with what reads it only."""
    return isinstance(instruction, Compute) and instruction.op.kind in _IDLE | _IDLE_VIEWS
