"""Group: how the groups of one collective lie on a topology, and how many share each link.

Mesh geometry comes in as numbers, the counts that the formulas of `collective` need go out. All counts are taken
from the device numbers of all groups, so they hold for axes that straddle levels and for sizes that fit no level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from cost_models.topology import Level, Topology

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Span:
    """How the groups lie on one level. Every count is the worst over groups and links.

    The links of a switch level are the uplinks of its units; `units` are those that hold members of one group, and
    `fanout` of them lie under the same unit of the level around. A path through all members in device order has
    `edges` between units of this level under the same unit of the level around. A group crosses an uplink if it has
    members inside and outside of the unit.

    On a full level a group of f devices has f - 1 links from each: its ring is run as f - 1 rings, which share no link
    (`sharing` 1 / (f - 1)); a message to another device has a link for itself (`crossing_members` 1,
    `crossing_pairs` 1/n). Groups share nothing there, and messages that leave the level pass none of its links.

    The links of a torus level are those of its lines: a group has one ring on each line that holds several of its
    members (`fanout` of them), and crosses the links from its first to its last member, or all of them where it
    lies evenly on a wrapped axis (`lanes` is then 2: both ways round are used).

    | count | of one link, summed over the groups that cross it |
    |---|---|
    | sharing | 1: messages, if each group sends along one ring |
    | crossing_members | members on the smaller side: messages, if as many send to the other side as can |
    | crossing_pairs | (members inside) x (outside) / members: messages of 1/n each, if all send to all |

    With two lanes, pairs take the shorter way round: half of the pairs cross a cut by each of its two links. A shift
    by k of f members splits each message over both ways so that all links carry as much: k (f - k) / f, which
    crossing_members then is at its worst. `hops` is the number of link latencies from the first to the last member
    of a ring (half way round, with two lanes).
    """

    level: Level
    units: int = 1
    edges: int = 0
    fanout: int = 1
    hops: int = 0
    sharing: float = 0
    crossing_members: float = 0.0
    crossing_pairs: float = 0.0
    lanes: int = 1


@dataclass(frozen=True)
class Group:
    """Groups of `size` devices that run the same collective at the same time, one span for each level.

    `regular`: every group has the same number of members in each unit it touches, on every level, so it can be cut
    into equal smaller groups level by level. On a torus: it is a grid of lines.
    """

    size: int
    spans: tuple[Span, ...]
    regular: bool

    @property
    def switches(self) -> tuple[Span, ...]:
        """The spans of switch and full levels that some group crosses, outermost first."""
        return tuple(span for span in self.spans if span.level.kind != "torus" and span.sharing)

    @property
    def tori(self) -> tuple[Span, ...]:
        """The spans of torus axes that some group crosses, outermost first."""
        return tuple(span for span in self.spans if span.level.kind == "torus" and span.sharing)


def group(topology: Topology, mesh_sizes: tuple[int, ...], axes: tuple[int, ...]) -> Group:
    """The groups along the mesh axes at positions `axes`, in any order, of a mesh of `mesh_sizes`.

    Device d of the mesh (row-major) is device d of the topology. Devices that differ only in their coordinates on
    `axes` are one group; all groups communicate at once. No axes, or axes of size 1, give groups of one.

    Raises:
      ValueError: if the mesh has more devices than the topology, an axis is not in it, or is named twice.
    """
    if prod(mesh_sizes) > topology.device_count:
        raise ValueError(f"mesh {mesh_sizes} needs {prod(mesh_sizes)} devices, the cluster has {topology.device_count}")
    if len(set(axes)) != len(axes) or not set(axes) <= set(range(len(mesh_sizes))):
        raise ValueError(f"axes {axes} must be distinct positions in a mesh of {len(mesh_sizes)} axes")
    return _group(topology, *_merged(mesh_sizes, axes))


@lru_cache(maxsize=4096)
def _group(topology: Topology, mesh_sizes: tuple[int, ...], axes: tuple[int, ...]) -> Group:
    return group_of_devices(topology, device_groups(mesh_sizes, axes))


@lru_cache(maxsize=65536)
def _merged(mesh_sizes: tuple[int, ...], axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same groups on the mesh of fewest axes: meshes of several shapes share them."""
    sizes: list[int] = []
    inside: list[bool] = []
    for axis, size in enumerate(mesh_sizes):
        if size > 1 and inside and inside[-1] == (axis in axes):
            sizes[-1] *= size
        elif size > 1:
            sizes.append(size)
            inside.append(axis in axes)
    return tuple(sizes), tuple(n for n, is_in in enumerate(inside) if is_in)


def device_groups(mesh_sizes: tuple[int, ...], axes: tuple[int, ...]) -> Ints:
    """The device numbers of each group along `axes`: groups[g, member], members ascending."""
    others = [axis for axis in range(len(mesh_sizes)) if axis not in axes]
    size = prod(mesh_sizes[axis] for axis in axes)
    ids = np.arange(prod(mesh_sizes), dtype=np.int64).reshape(mesh_sizes)
    return ids.transpose(others + sorted(axes)).reshape(-1, size)


def group_of_devices(topology: Topology, groups: Ints) -> Group:
    """The Group of explicit device numbers groups[g, member]; no device in two groups."""
    size = groups.shape[1]
    switches = sum(level.kind != "torus" for level in topology.levels)
    spans: list[Span] = []
    regular = True
    parent_stride = topology.device_count
    for level, stride in zip(topology.levels[:switches], topology.strides, strict=False):
        count = _full_span if level.kind == "full" else _switch_span
        span, even = count(level, groups, stride, parent_stride)
        spans.append(span)
        regular = regular and even
        parent_stride = stride
    if switches < len(topology.levels):
        boxes, even = _torus_boxes(groups, topology.sizes[switches:])
        regular = regular and even
        axes = zip(topology.levels[switches:], topology.strides[switches:], strict=True)
        spans += [_torus_span(level, stride, boxes, size) for level, stride in axes]
    return Group(size, tuple(spans), regular)


def _switch_span(level: Level, groups: Ints, stride: int, parent_stride: int) -> tuple[Span, bool]:
    """The span of a switch level whose units hold `stride` devices, and whether all groups lie on it alike."""
    size = groups.shape[1]
    touched, members = np.unique(_parents(groups, stride), axis=1, return_counts=True)
    parents = np.stack([touched[0], touched[1] * stride // parent_stride])
    around, fanouts = np.unique(parents, axis=1, return_counts=True)
    even = members.min() == members.max() and fanouts.min() == fanouts.max()
    crossing = members < size
    unit, inside = touched[1][crossing], members[crossing]
    if not len(unit):
        return Span(level), bool(even)
    outside = size - inside
    span = Span(
        level,
        units=int(np.bincount(touched[0]).max()),
        edges=int((np.bincount(touched[0]) - np.bincount(around[0])).max()),
        fanout=int(fanouts.max()),
        hops=int(fanouts.max()) - 1,
        sharing=int(np.bincount(unit).max()),
        crossing_members=float(np.bincount(unit, weights=np.minimum(inside, outside)).max()),
        crossing_pairs=float(np.bincount(unit, weights=inside * outside / size).max()),
    )
    return span, bool(even)


def _full_span(level: Level, groups: Ints, stride: int, parent_stride: int) -> tuple[Span, bool]:
    """The span of a full level of single devices: as a switch level has, but for the loads of its links."""
    span, even = _switch_span(level, groups, stride, parent_stride)
    _, together = np.unique(_parents(groups, parent_stride), axis=1, return_counts=True)
    if together.max() < 2:
        return replace(span, hops=0, sharing=0, crossing_members=0.0, crossing_pairs=0.0), even
    slowest = 1 / (int(together[together > 1].min()) - 1)
    return replace(span, hops=1, sharing=slowest, crossing_members=1.0, crossing_pairs=1 / groups.shape[1]), even


def _parents(groups: Ints, stride: int) -> Ints:
    """For each member the number of its group, and that of the unit of `stride` devices that holds it."""
    owner = np.repeat(np.arange(len(groups)), groups.shape[1])
    return np.stack([owner, groups.ravel() // stride])


def _torus_boxes(groups: Ints, sizes: tuple[int, ...]) -> tuple[Ints, bool]:
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
            used: list[Ints] = [np.unique(local // stride % n) for stride, n in zip(strides, sizes, strict=True)]
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


def _torus_span(level: Level, stride: int, boxes: Ints, size: int) -> Span:
    """The span of one torus axis; `boxes` are the (part, device) rows of `_torus_boxes`."""
    coordinate = boxes[:, 1] // stride % level.size
    line = boxes[:, 1] - coordinate * stride
    keys, position = np.unique(np.stack([boxes[:, 0], line]), axis=1, return_inverse=True)
    present = np.zeros((keys.shape[1], level.size), dtype=np.int64)
    present[position.ravel(), coordinate] = 1
    count = present.sum(axis=1)
    if size == 1 or count.max() < 2:
        return Span(level)
    present, line, count = present[count > 1], keys[1][count > 1], count[count > 1]
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


def _line_loads(loads: NDArray[np.int64] | NDArray[np.float64], line_of: NDArray[np.intp]) -> NDArray[np.float64]:
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
