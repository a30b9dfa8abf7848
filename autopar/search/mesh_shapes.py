"""Mesh shapes: the factorisations of a cluster's devices that its topology makes sensible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from autopar.core.mesh import DeviceMesh

NAMES = ("x", "y", "z", "w")


def mesh_shapes(level_sizes: Sequence[int], max_axes: int) -> tuple[DeviceMesh, ...]:
    """The meshes of one to `max_axes` axes over levels of these sizes, outermost first.

    All devices on one axis; or axes none of which straddles two levels. Within a level the order of axes changes
    nothing, so sizes are non-decreasing there. Levels of one unit are left out.
    """
    levels = [size for size in level_sizes if size > 1] or [1]
    total = 1
    for size in levels:
        total *= size
    shapes: dict[tuple[int, ...], None] = {(total,): None}
    for parts in product(*(list(_factorisations(size, 2, max_axes)) for size in levels)):
        shape = tuple(size for part in parts for size in part)
        if len(shape) <= max_axes:
            shapes[shape] = None
    return tuple(DeviceMesh(tuple(zip(NAMES, shape, strict=False))) for shape in shapes)


def _factorisations(number: int, smallest: int, most: int) -> Iterator[tuple[int, ...]]:
    """The factorisations of `number` into at most `most` non-decreasing factors >= `smallest`."""
    if most < 1:
        return
    if number >= smallest or number == 1:
        yield (number,)
    for factor in range(smallest, int(number**0.5) + 1):
        if number % factor == 0:
            for rest in _factorisations(number // factor, factor, most - 1):
                yield (factor, *rest)
