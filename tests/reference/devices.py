"""Devices as coordinates, and what a placement says each of them holds of a numpy array."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement

Device = tuple[int, ...]
Locals = dict[Device, np.ndarray]
"""A tensor: from a device's coordinates to its local array."""

COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class ReplicasDiffer(AssertionError):
    """Devices that a placement says are replicas hold different bits."""


def devices(mesh: DeviceMesh) -> list[Device]:
    return list(product(*(range(size) for size in mesh.sizes)))


def part_number(device: Device, axes: tuple[str, ...], mesh: DeviceMesh) -> int:
    """Which part of a dim split by `axes`, major to minor, the device has."""
    number = 0
    for axis in axes:
        number = number * mesh.product([axis]) + device[mesh.names.index(axis)]
    return number


def part(array: np.ndarray, number: int, parts: int, dim: int) -> np.ndarray:
    return np.split(array, parts, axis=dim)[number]


def shard(array: np.ndarray, device: Device, placement: Placement, mesh: DeviceMesh) -> np.ndarray:
    for dim, axes in enumerate(placement.dims):
        array = part(array, part_number(device, axes, mesh), mesh.product(axes), dim)
    return array


def groups(axes: tuple[str, ...], mesh: DeviceMesh) -> Iterator[list[Device]]:
    """The devices that differ along `axes` only, in the order of those axes, major to minor."""
    rest = [axis for axis in mesh.names if axis not in axes]
    by_rest: dict[int, list[Device]] = {}
    for device in devices(mesh):
        by_rest.setdefault(part_number(device, tuple(rest), mesh), []).append(device)
    for members in by_rest.values():
        yield sorted(members, key=lambda device: part_number(device, axes, mesh))


def assemble(
    local: Locals, placement: Placement, shape: tuple[int, ...], mesh: DeviceMesh
) -> np.ndarray:
    """The whole tensor that the devices hold as `placement` says: parts combined, shards joined.

    Raises:
      ReplicasDiffer: if devices that differ along replicated axes only do not hold the same, bit for bit.
      AssertionError: if a shard has another shape than its placement says.
    """
    check_replicas(local, placement, mesh)
    whole = np.empty(shape, local[devices(mesh)[0]].dtype)
    sizes = placement.local_shape(shape, mesh)
    for group in groups(placement.unreduced, mesh):
        held = [local[device] for device in group]
        assert {array.shape for array in held} == {sizes}, (
            f"shards {held[0].shape} of {shape} {placement}"
        )
        numbers = [part_number(group[0], axes, mesh) for axes in placement.dims]
        window = tuple(
            slice(n * size, (n + 1) * size) for n, size in zip(numbers, sizes, strict=True)
        )
        whole[window] = held[0] if len(held) == 1 else COMBINE[placement.kind].reduce(held)
    return whole


def check_replicas(
    local: Locals, placement: Placement, mesh: DeviceMesh, manual: tuple[str, ...] = ()
) -> None:
    """Raises ReplicasDiffer unless devices that differ along replicated axes only hold the same, bit for bit.

    Along `manual` axes there is one value for each position.
    """
    varying = {*placement.varying_axes, *manual}
    for group in groups(tuple(axis for axis in mesh.names if axis not in varying), mesh):
        first = local[group[0]]
        for device in group[1:]:
            if local[device] is not first and local[device].tobytes() != first.tobytes():
                raise ReplicasDiffer(
                    f"devices {group[0]} and {device} differ in a tensor placed {placement}"
                )
