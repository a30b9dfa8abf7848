"""Which single step links two placements, by definition, and the cheapest sequences of steps, by relaxation.

Slow and obvious: every pair of all placements is looked at. Meshes here have no axis of size 1, so that at most one
kind of step links two placements.
"""

from __future__ import annotations

from itertools import permutations, product
from math import prod

import numpy as np

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Kind, Placement, StepKind
from autopar.redistribute.step import StepPrice

Link = tuple[StepKind, tuple[str, ...]]


def all_placements(
    mesh: DeviceMesh, rank: int, kinds: tuple[Kind, ...] = ("sum",)
) -> list[Placement]:
    """Every role for every axis (a dim, unreduced, none), in every order of the axes on a dim."""
    found: dict[Placement, None] = {}
    for order in permutations(mesh.names):
        for roles in product([*range(rank), "unreduced", None], repeat=len(order)):
            of = dict(zip(order, roles, strict=True))
            dims = tuple(tuple(axis for axis in order if of[axis] == dim) for dim in range(rank))
            unreduced = tuple(axis for axis in order if of[axis] == "unreduced")
            found.update({Placement(dims, unreduced, kind): None for kind in kinds})
    return list(found)


def link(before: Placement, after: Placement, mesh: DeviceMesh) -> Link | None:
    """The kind and the axes of the one step from `before` to `after`, if there is one."""
    if before.unreduced and after.unreduced and before.kind != after.kind:
        return None
    changed = [dim for dim in range(len(before.dims)) if before.dims[dim] != after.dims[dim]]
    dropped, added = (
        set(before.unreduced) - set(after.unreduced),
        set(after.unreduced) - set(before.unreduced),
    )
    if dropped and not added:
        return _reduction(before, after, changed, dropped, mesh)
    if added and not dropped:
        return ("mask", mesh.sort(added)) if not changed else None
    if dropped or not changed:
        return None
    return _move(before, after, changed, mesh)


def _reduction(
    before: Placement, after: Placement, changed: list[int], dropped: set[str], mesh: DeviceMesh
) -> Link | None:
    if not changed:
        return "all_reduce", mesh.sort(dropped)
    if len(changed) > 1 or before.kind != "sum":
        return None
    tail = _tail(before.dims[changed[0]], after.dims[changed[0]])
    return ("reduce_scatter", tail) if set(tail) == dropped else None


def _move(before: Placement, after: Placement, changed: list[int], mesh: DeviceMesh) -> Link | None:
    parts = [[mesh.product(axes) for axes in placement.dims] for placement in (before, after)]
    if parts[0] == parts[1]:
        return "permute", tuple(
            axis for axis in mesh.names if _digit(before, axis, mesh) != _digit(after, axis, mesh)
        )
    if len(changed) == 1:
        old, new = before.dims[changed[0]], after.dims[changed[0]]
        if _tail(old, new):
            return "slice", _tail(old, new)
        return ("all_gather", _tail(new, old)) if _tail(new, old) else None
    if len(changed) > 2:
        return None
    for one, other in (changed, changed[::-1]):
        lost, gained = (
            _tail(after.dims[one], before.dims[one]),
            _tail(before.dims[other], after.dims[other]),
        )
        if lost and lost == gained:
            return "all_to_all", lost
    return None


def _tail(short: tuple[str, ...], long: tuple[str, ...]) -> tuple[str, ...]:
    """What stands after `short` in `long`; nothing if `long` does not begin so."""
    return long[len(short) :] if long[: len(short)] == short else ()


def _digit(placement: Placement, axis: str, mesh: DeviceMesh) -> tuple[int, int] | None:
    """The dim that the axis splits and the number of parts between neighbours along it."""
    for dim, axes in enumerate(placement.dims):
        if axis in axes:
            return dim, prod(mesh.product([minor]) for minor in axes[axes.index(axis) + 1 :])
    return None


def cheapest(
    placements: list[Placement],
    shape: tuple[int, ...],
    itemsize: int,
    mesh: DeviceMesh,
    price: StepPrice,
) -> np.ndarray:
    """cost[source, target] of the cheapest sequence of steps through `placements`, relaxed to a fixpoint."""
    step = np.full((len(placements),) * 2, np.inf)
    for (i, before), (j, after) in product(enumerate(placements), repeat=2):
        found = link(before, after, mesh)
        if found is not None:
            size = itemsize * max(before.local_size(shape, mesh), after.local_size(shape, mesh))
            step[i, j] = price(*found, size)
    np.fill_diagonal(step, 0.0)
    cost = step
    while True:
        longer = np.stack([(row[:, None] + cost).min(axis=0) for row in cost])
        if np.allclose(longer, cost, rtol=1e-13, atol=0.0):
            return cost
        cost = longer
