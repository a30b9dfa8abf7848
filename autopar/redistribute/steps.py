"""Every single step that leads from one placement to another: the moves of which a route is made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import chain, combinations, permutations

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Dims, Kind, Placement
from autopar.redistribute.step import Step

Axes = tuple[str, ...]


def steps_from(
    placement: Placement, shape: Sequence[int], mesh: DeviceMesh, kinds: Collection[Kind] = ("sum",)
) -> tuple[Step, ...]:
    """Every legal single step from `placement` of a tensor of global `shape`, in a fixed order.

    A step is legal if the placement after it divides `shape` evenly.

    Args:
      placement: where the tensor is; it divides `shape` evenly.
      shape: the global shape.
      mesh: the devices.
      kinds: the kinds that a mask may start. Once an axis is unreduced, masks keep its kind.
    """
    return tuple(
        step for step in moves_from(placement, mesh, kinds) if step.after.fits(shape, mesh)
    )


def moves_from(placement: Placement, mesh: DeviceMesh, kinds: Collection[Kind]) -> Iterator[Step]:
    """The steps from `placement` whatever the tensor's shape: `steps_from` before the test of divisibility.

    | kind | variants |
    |---|---|
    | all_gather | the last k axes of a dim, k >= 1 |
    | all_to_all | the last k axes of a dim, onto any other dim |
    | slice | any sequence of replicated axes, onto any dim |
    | reduce_scatter | any sequence of unreduced axes of kind sum, onto any dim |
    | all_reduce | any set of unreduced axes |
    | mask | any set of replicated axes |
    | permute | any other split of the dims with the same local shape and the same unreduced axes |
    """
    replicated = tuple(axis for axis in mesh.names if axis not in placement.varying_axes)
    return chain(
        _all_gathers(placement),
        _all_to_alls(placement),
        _slices(placement, replicated),
        _reduce_scatters(placement, mesh),
        _all_reduces(placement, mesh),
        _masks(placement, replicated, kinds),
        _permutes(placement, mesh),
    )


def _all_gathers(before: Placement) -> Iterator[Step]:
    for dim, axes in enumerate(before.dims):
        for kept, tail in _cuts(axes):
            yield Step("all_gather", tail, before, _with_dims(before, {dim: kept}), dim)


def _all_to_alls(before: Placement) -> Iterator[Step]:
    for dim, axes in enumerate(before.dims):
        for kept, tail in _cuts(axes):
            for to_dim, others in enumerate(before.dims):
                if to_dim != dim:
                    after = _with_dims(before, {dim: kept, to_dim: others + tail})
                    yield Step("all_to_all", tail, before, after, dim, to_dim)


def _slices(before: Placement, replicated: Axes) -> Iterator[Step]:
    for axes in _sequences(replicated):
        for dim, present in enumerate(before.dims):
            yield Step("slice", axes, before, _with_dims(before, {dim: present + axes}), dim)


def _reduce_scatters(before: Placement, mesh: DeviceMesh) -> Iterator[Step]:
    if before.kind != "sum":
        return
    for axes in _sequences(mesh.sort(before.unreduced)):
        rest = _without(before.unreduced, axes)
        for dim, present in enumerate(before.dims):
            after = _with_dims(before, {dim: present + axes}, rest)
            yield Step("reduce_scatter", axes, before, after, dim)


def _all_reduces(before: Placement, mesh: DeviceMesh) -> Iterator[Step]:
    for axes in _sets(mesh.sort(before.unreduced)):
        yield Step(
            "all_reduce", axes, before, _with_dims(before, {}, _without(before.unreduced, axes))
        )


def _masks(before: Placement, replicated: Axes, kinds: Collection[Kind]) -> Iterator[Step]:
    wanted: Collection[Kind] = (before.kind,) if before.unreduced else kinds
    for kind in wanted:
        for axes in _sets(replicated):
            yield Step("mask", axes, before, Placement(before.dims, before.unreduced + axes, kind))


def _permutes(before: Placement, mesh: DeviceMesh) -> Iterator[Step]:
    free = tuple(axis for axis in mesh.names if axis not in before.unreduced)
    parts = tuple(mesh.product(axes) for axes in before.dims)
    old = _roles(before.dims, mesh)
    for dims in _arrangements(parts, free, mesh):
        new = _roles(dims, mesh)
        axes = tuple(axis for axis in free if old.get(axis) != new.get(axis))
        if axes:
            yield Step("permute", axes, before, Placement(dims, before.unreduced, before.kind))


@lru_cache(maxsize=4096)
def _arrangements(parts: tuple[int, ...], free: Axes, mesh: DeviceMesh) -> tuple[Dims, ...]:
    """Every way to cut the dims into `parts` parts by the `free` axes."""
    if not parts:
        return ((),)
    found: list[Dims] = []
    for axes in ((), *_sequences(free)):
        if mesh.product(axes) == parts[0]:
            found += [
                (axes, *rest) for rest in _arrangements(parts[1:], _without(free, axes), mesh)
            ]
    return tuple(found)


@lru_cache(maxsize=4096)
def _roles(dims: Dims, mesh: DeviceMesh) -> dict[str, tuple[int, int]]:
    """For every axis that splits a dim: the dim, and how many parts of it one step along the axis skips.

    Axes that keep this role fix the same digit of the part's number before and after, so the others can exchange
    their parts among themselves.
    """
    roles: dict[str, tuple[int, int]] = {}
    for dim, axes in enumerate(dims):
        stride = 1
        for axis in reversed(axes):
            roles[axis] = (dim, stride)
            stride *= mesh.product((axis,))
    return roles


def _with_dims(
    before: Placement, changed: dict[int, Axes], unreduced: Axes | None = None
) -> Placement:
    dims = list(before.dims)
    for dim, axes in changed.items():
        dims[dim] = axes
    return Placement(tuple(dims), before.unreduced if unreduced is None else unreduced, before.kind)


def _without(axes: Axes, dropped: Axes) -> Axes:
    return tuple(axis for axis in axes if axis not in dropped)


def _cuts(axes: Axes) -> Iterator[tuple[Axes, Axes]]:
    return ((axes[:cut], axes[cut:]) for cut in range(len(axes)))


def _sets(axes: Axes) -> Iterator[Axes]:
    return chain.from_iterable(combinations(axes, count) for count in range(1, len(axes) + 1))


def _sequences(axes: Axes) -> Iterator[Axes]:
    return chain.from_iterable(permutations(axes, count) for count in range(1, len(axes) + 1))
