"""Picked: the runs that a gather reads and a scatter writes, each where an index says."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from autopar.core.graph import OpNode

Number = TypeVar("Number", float, NDArray[np.float64])
"""Of one strategy, or one for each of several."""
_SCATTERS = frozenset(
    {"scatter", *(f"scatter-{kind}" for kind in ("add", "sub", "mul", "min", "max"))}
)
_INDICES = 1
_MOVED = 2
"""Where these stand among operands and results: a gather has two operands, a scatter's updates are its third."""


def picked_runs(op: OpNode, parts: Sequence[Number]) -> tuple[Number, Number] | None:
    """How many runs one device picks, and the bytes of each; None if `op` is neither a gather nor a scatter.

    An index picks one run. A device whose part of the indices is smaller picks fewer, one whose part of the rows'
    elements is smaller as many that are shorter.

    Args:
      op: the operator.
      parts: by operand, then by result, into how many parts it is split: numbers, or arrays over strategies.
    """
    if op.kind != "gather" and op.kind not in _SCATTERS:
        return None
    indices = op.ins[_INDICES]
    moved = (*op.ins, *op.outs)[_MOVED]
    count = prod(indices.shape[:-1])
    return count / parts[_INDICES], moved.size_bytes / max(1, count) * parts[_INDICES] / parts[
        _MOVED
    ]
