"""Blocks: which part of an array one point of a kernel's grid sees, as far as that is simple enough to split by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Picked:
    """A dim of an array whose blocks, of `size` elements, are picked by the axis `axis` of the grid.

    Point p along it sees block p // `shared`: so many neighbours see the same. The blocks cover the dim exactly.
    """

    axis: int
    shared: int
    size: int


Dims = tuple[Picked | None, ...]
"""For each dim of an array what picks its blocks; None: no axis of the grid that may be split."""


@dataclass(frozen=True)
class Blocks:
    """How a kernel goes through its arrays.

    `grid` are the numbers of points along its axes, 0 where only a run tells. `arrays` are the operands behind the
    `leading` ones (sizes of the grid, numbers for index maps), then the results. Points along an axis that any of them
    names have nothing to do with one another. `flops` are the operations of its products of matrices, at all points;
    None where only a run tells.
    """

    grid: tuple[int, ...]
    leading: int
    arrays: tuple[Dims, ...]
    flops: float | None
