"""How the groups of one collective lie on a topology, and how many share each link.

Mesh geometry comes in as numbers, the counts that the formulas of `algorithms` need go out. All counts are taken
from the device numbers of all groups, so they hold for axes that straddle levels and for sizes that fit no level.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from cost_models.spans import Group, Ints, Span, full_span, switch_span
from cost_models.topology import Topology
from cost_models.tori import torus_boxes, torus_span, with_routed_pairs


def group(topology: Topology, mesh_sizes: tuple[int, ...], axes: tuple[int, ...]) -> Group:
    """The groups along the mesh axes at positions `axes`, in any order, of a mesh of `mesh_sizes`.

    Device d of the mesh (row-major) is device d of the topology. Devices that differ only in their coordinates on
    `axes` are one group; all groups communicate at once. No axes, or axes of size 1, give groups of one.

    Raises:
      ValueError: if the mesh has more devices than the topology, an axis is not in it, or is named twice.
    """
    if prod(mesh_sizes) > topology.device_count:
        raise ValueError(
            f"mesh {mesh_sizes} needs {prod(mesh_sizes)} devices, the cluster has {topology.device_count}"
        )
    if len(set(axes)) != len(axes) or not set(axes) <= set(range(len(mesh_sizes))):
        raise ValueError(
            f"axes {axes} must be distinct positions in a mesh of {len(mesh_sizes)} axes"
        )
    return _group(topology, *_merged(mesh_sizes, axes))


@lru_cache(maxsize=4096)
def _group(topology: Topology, mesh_sizes: tuple[int, ...], axes: tuple[int, ...]) -> Group:
    return group_of_devices(topology, device_groups(mesh_sizes, axes))


@lru_cache(maxsize=65536)
def _merged(
    mesh_sizes: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
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
        count = full_span if level.kind == "full" else switch_span
        span, even = count(level, groups, stride, parent_stride)
        spans.append(span)
        regular = regular and even
        parent_stride = stride

    if switches < len(topology.levels):
        boxes, even = torus_boxes(groups, topology.sizes[switches:])
        regular = regular and even
        axes = zip(topology.levels[switches:], topology.strides[switches:], strict=True)
        found = [torus_span(level, stride, boxes, size) for level, stride in axes]
        if not even or boxes[-1, 0] + 1 > len(groups):
            found = with_routed_pairs(found, groups, topology.sizes[switches:])
        spans += found

    return Group(size, tuple(spans), regular)
