"""Mesh shapes: the factorisations of a cluster's devices that its topology makes sensible, and which contain others.

A shape is told by its strides: the devices that one step along each of its axes skips. An axis lies evenly on a level
if one of their strides divides the other; so (16, 4) is sensible on 8 servers of 8 devices, but (6, 4) is
not on 4 servers of 6.

    shape (2, 4, 8): strides 32, 8, 1        servers of 8 devices: strides 8, 1

A shape *refines* another if it has all its strides: its axes are those of the other, cut into several. Every plan on
the other is then one on the finer shape too, at the same price wherever that depends on the devices of a group alone:
each axis is replaced by those it is cut into, major to minor. So the best plan on a finer shape is never worse.
The order of axes matters, on one switch too: several axes on one dim stand in mesh order, so (2, 4) can gather the
half of a dim that 4 devices hold where (4, 2) can gather the quarter that 2 hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

from autopar.core.mesh import DeviceMesh

NAMES = ("x", "y", "z", "w")
MAX_AXES = len(NAMES)


def mesh_shapes(level_sizes: Sequence[int], max_axes: int) -> tuple[DeviceMesh, ...]:
    """The meshes of one to `max_axes` (1 to 4) axes that lie evenly on levels of these sizes, outermost first.

    Those of fewer axes come first, then in the order of their sizes; the first is all devices on one axis.
    """
    count = prod(level_sizes)
    strides = [d for d in range(2, count) if count % d == 0 and _is_even(d, level_sizes)]
    chains = [chain for most in range(max_axes) for chain in _chains(strides, most, count)]
    shapes = sorted(
        {_sizes((count, *chain, 1)) for chain in chains}, key=lambda sizes: (len(sizes), sizes)
    )
    return tuple(DeviceMesh(tuple(zip(NAMES, sizes, strict=False))) for sizes in shapes)


def refines(fine: DeviceMesh, coarse: DeviceMesh) -> bool:
    """Whether every axis of `coarse` is a run of axes of `fine`: each plan on `coarse` is then one on `fine`."""
    return fine.size == coarse.size and _strides(coarse) <= _strides(fine)


def promise(mesh: DeviceMesh) -> tuple[int, float]:
    """What is looked at first where nothing is known: the least, of the most axes and the most even ones of these.

    What is proven of more axes holds for fewer, and devices are rarely split best by one axis alone.
    """
    return -len(mesh.sizes), max(mesh.sizes) / min(mesh.sizes)


def _strides(mesh: DeviceMesh) -> frozenset[int]:
    return frozenset(prod(mesh.sizes[n:]) for n in range(len(mesh.sizes) + 1))


def _is_even(stride: int, level_sizes: Sequence[int]) -> bool:
    """Whether an axis with this stride lies evenly on every level."""
    levels = [prod(level_sizes[n:]) for n in range(len(level_sizes))]
    return all(stride % level == 0 or level % stride == 0 for level in levels)


def _chains(strides: Sequence[int], length: int, below: int) -> Iterator[tuple[int, ...]]:
    """The sequences of `length` strides, each a proper divisor of the one before; the first one of `below`."""
    if not length:
        yield ()
        return
    for stride in strides:
        if stride < below and below % stride == 0:
            yield from ((stride, *rest) for rest in _chains(strides, length - 1, stride))


def _sizes(strides: Sequence[int]) -> tuple[int, ...]:
    """The axis sizes between these strides; one device is one axis."""
    return tuple(outer // inner for outer, inner in pairwise(strides))
