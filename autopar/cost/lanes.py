"""Lanes: where last dims lie in memory in whole lanes, a device moves more of a part than its share of the whole.

parts * whole lanes of one part / whole lanes of the whole        128 lanes: of 128 columns, 16 are moved as 128
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autopar.core.graph import OpNode, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy


def filled_up(tensor: TensorInfo, placement: Placement, mesh: DeviceMesh, lanes: int) -> float:
    """By how much more than its share of `tensor` a device holds and moves, as a factor; vectors lie without gaps."""
    if lanes == 1 or tensor.ndim < 2 or not placement.dims[-1] or not tensor.shape[-1]:
        return 1.0
    parts = mesh.product(placement.dims[-1])
    return parts * _lying(tensor.shape[-1] // parts, lanes) / _lying(tensor.shape[-1], lanes)


def all_filled_up(
    op: OpNode, strategies: Sequence[Strategy], mesh: DeviceMesh, lanes: int
) -> list[NDArray[np.float64]]:
    """`filled_up` of each operand and result under each of the strategies."""
    sides = zip(*[(*strategy.ins, *strategy.outs) for strategy in strategies], strict=True)
    return [
        np.array([filled_up(tensor, placement, mesh, lanes) for placement in side])
        for tensor, side in zip((*op.ins, *op.outs), sides, strict=True)
    ]


def _lying(elements: int, lanes: int) -> int:
    """So many elements and what the last lanes are filled up with."""
    return -(-elements // lanes) * lanes
