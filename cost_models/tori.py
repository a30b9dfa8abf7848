"""The counts of groups on the axes of a torus."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from cost_models.spans import Ints, Span
from cost_models.topology import Level


def torus_boxes(groups: Ints, sizes: tuple[int, ...]) -> tuple[Ints, bool]:
    """The rows (part, device) of the parts of groups that lie in one torus, and whether all are equal grids.

    A part that is no grid of lines is replaced by the smallest box around it: its rings are priced as if they
    covered the box.
    """
    torus = prod(sizes)
    strides = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
    parts: list[Ints] = []
    shapes: set[tuple[int, ...]] = set()
    all_grids = True
    for row in groups:
        for start in np.unique(row // torus) * torus:
            local = row[row // torus == start // torus] - start
            used: list[Ints] = [
                np.unique(local // stride % n) for stride, n in zip(strides, sizes, strict=True)
            ]
            shape = tuple(len(axis) for axis in used)
            if prod(shape) != len(local):
                all_grids = False
                used = [np.arange(axis[0], axis[-1] + 1, dtype=np.int64) for axis in used]
            shapes.add(shape)
            cells = np.array([start], dtype=np.int64)
            for stride, axis in zip(strides, used, strict=True):
                cells = (cells[:, None] + stride * axis).ravel()
            parts.append(np.stack([np.full_like(cells, len(parts)), cells], axis=1))

    return np.concatenate(parts), all_grids and len(shapes) == 1


def torus_span(level: Level, stride: int, boxes: Ints, size: int) -> Span:
    """The span of one torus axis; `boxes` are the (part, device) rows of `torus_boxes`."""
    coordinate = boxes[:, 1] // stride % level.size
    line = boxes[:, 1] - coordinate * stride
    lines = int(line.max(initial=0)) + 1
    keys, position = np.unique(boxes[:, 0] * lines + line, return_inverse=True)
    present = np.zeros((len(keys), level.size), dtype=np.int64)
    present[position.ravel(), coordinate] = 1
    count = present.sum(axis=1)
    if size == 1 or count.max() < 2:
        return Span(level)

    present = present[count > 1]
    line = keys[count > 1] % lines
    count = count[count > 1]
    lanes = 2 if level.wrap and all(_is_even_ring(row) for row in present) else 1
    left = present.cumsum(axis=1)[:, :-1]
    right = count[:, None] - left
    crosses = np.ones_like(left) if lanes == 2 else np.minimum(np.minimum(left, right), 1)
    _, line_of = np.unique(line, return_inverse=True)
    fanout = int(count.max())
    pairs = _line_loads(left * right / count[:, None], line_of).max()
    smaller_sides = _line_loads(np.minimum(left, right), line_of).max()
    return Span(
        level,
        units=fanout,
        fanout=fanout,
        hops=_ring_hops(present, lanes),
        sharing=int(_line_loads(crosses, line_of).max()),
        crossing_members=float(pairs if lanes == 2 else smaller_sides),
        crossing_pairs=float(pairs) / lanes,
        lanes=lanes,
    )


def with_routed_pairs(spans: list[Span], groups: Ints, sizes: tuple[int, ...]) -> list[Span]:
    """The spans of all axes, with the pairs of groups that are no grids of one torus counted one by one."""
    loads = (_routed_pairs(groups, sizes, axis) for axis in range(len(sizes)))
    return [
        replace(s, crossing_pairs=n / s.lanes) if s.sharing else s
        for s, n in zip(spans, loads, strict=True)
    ]


def _routed_pairs(groups: Ints, sizes: tuple[int, ...], axis: int) -> float:
    """The load of the busiest link of an axis, if all send to all by routes that go axis after axis, outermost first.

    Where a message goes along the axis, it has its target's place on the axes before and its source's on those after.
    So the links at one place between two halves of a line carry (sources on one side that have the line's place on
    the axes after) x (targets on the other side that have its place on the axes before), of 1/n each.
    """
    before = prod(sizes[:axis])
    length = sizes[axis]
    after = prod(sizes[axis + 1 :])
    torus = before * length * after
    busiest = 0
    for number in np.unique(groups // torus):
        load = np.zeros((2, length, before, after), dtype=np.int64)
        for row in groups:
            here = np.zeros(torus, dtype=np.int64)
            here[row[row // torus == number] % torus] = 1
            places = here.reshape(before, length, after)
            for way, members in enumerate((places, places[:, ::-1])):
                sources = members.sum(axis=0).cumsum(axis=0)
                targets = members.sum(axis=2).T
                beyond = targets.sum(axis=0) - targets.cumsum(axis=0)
                load[way] += beyond[:, :, None] * sources[:, None, :]
        busiest = max(busiest, int(load.max()))

    return busiest / groups.shape[1]


def _line_loads(
    loads: NDArray[np.int64] | NDArray[np.float64], line_of: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Sums loads[ring, link] over the rings of the same line."""
    total = np.zeros((int(line_of.max()) + 1, loads.shape[1]))
    np.add.at(total, line_of.ravel(), loads)
    return total


def _is_even_ring(present: Ints) -> bool:
    """Whether the members on a wrapped axis stand at equal distances all the way round."""
    places = np.flatnonzero(present)
    gaps = np.diff(np.append(places, places[0] + len(present)))
    return bool((gaps == gaps[0]).all())


def _ring_hops(present: Ints, lanes: int) -> int:
    """The links between the first and the last member of a line, or half way round a ring."""
    if lanes == 2:
        return present.shape[1] // 2
    places = [np.flatnonzero(row) for row in present]
    return int(max(place[-1] - place[0] for place in places))
