"""Steps on numpy arrays: a tensor is a dict from a device's coordinates to its local array.

The meaning of placements and steps, written down without regard to `autopar.redistribute`, in small integers: sums are
exact. An unreduced tensor is one whose devices hold parts that combine to the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import product

import numpy as np

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Kind, Placement
from autopar.redistribute.step import Step

Device = tuple[int, ...]
Locals = dict[Device, np.ndarray]

COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
NEUTRAL = {"sum": 0, "max": np.iinfo(np.int64).min, "min": np.iinfo(np.int64).max}


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


def distribute(array: np.ndarray, placement: Placement, mesh: DeviceMesh, rng: np.random.Generator) -> Locals:
    """The devices' shards; unreduced axes get random parts whose combination is `array`."""
    parts = random_parts(array, mesh.product(placement.unreduced), placement.kind, rng)
    return {
        device: shard(parts[part_number(device, placement.unreduced, mesh)], device, placement, mesh)
        for device in devices(mesh)
    }


def random_parts(array: np.ndarray, count: int, kind: Kind, rng: np.random.Generator) -> list[np.ndarray]:
    noise = [rng.integers(1, 1000, array.shape) for _ in range(count - 1)]
    if kind == "sum":
        parts = [array - sum(noise), *noise]
    else:
        sign = -1 if kind == "max" else 1
        parts = [array, *(array + sign * change for change in noise)]
    order = rng.permuted(np.tile(np.arange(count).reshape(-1, *[1] * array.ndim), (1, *array.shape)), axis=0)
    return list(np.take_along_axis(np.stack(parts), order, axis=0))


def assert_holds(local: Locals, array: np.ndarray, placement: Placement, mesh: DeviceMesh) -> None:
    """The devices hold `array` as `placement` says."""
    for group in groups(placement.unreduced, mesh):
        combined = reduce(COMBINE[placement.kind], [local[device] for device in group])
        np.testing.assert_array_equal(combined, shard(array, group[0], placement, mesh), strict=True)


def groups(axes: tuple[str, ...], mesh: DeviceMesh) -> Iterator[list[Device]]:
    """The devices that differ along `axes` only, in the order of those axes, major to minor."""
    rest = [axis for axis in mesh.names if axis not in axes]
    by_rest: dict[int, list[Device]] = {}
    for device in devices(mesh):
        by_rest.setdefault(part_number(device, tuple(rest), mesh), []).append(device)
    for members in by_rest.values():
        yield sorted(members, key=lambda device: part_number(device, axes, mesh))


def apply_step(local: Locals, step: Step, mesh: DeviceMesh) -> Locals:
    after: Locals = {}
    for group in groups(step.axes, mesh):
        held = [local[device] for device in group]
        after.update(zip(group, apply_to_group(held, step, group, mesh), strict=True))
    return after


def apply_to_group(held: list[np.ndarray], step: Step, group: list[Device], mesh: DeviceMesh) -> list[np.ndarray]:
    n = len(group)
    combine, neutral = COMBINE[step.before.kind], NEUTRAL[step.after.kind]
    match step.kind:
        case "all_gather":
            return [np.concatenate(held, axis=step.dim)] * n
        case "slice":
            return [part(array, number, n, step.dim) for number, array in enumerate(held)]
        case "all_to_all":
            sent = [np.split(array, n, axis=step.to_dim) for array in held]
            return [np.concatenate([chunks[number] for chunks in sent], axis=step.dim) for number in range(n)]
        case "all_reduce":
            return [reduce(combine, held)] * n
        case "reduce_scatter":
            assert step.before.kind == "sum"
            return np.split(reduce(combine, held), n, axis=step.dim)
        case "mask":
            return [held[0], *(np.full_like(array, neutral) for array in held[1:])]
        case "permute":
            return [held[sender] for sender in senders(step, group, mesh)]


def senders(step: Step, group: list[Device], mesh: DeviceMesh) -> list[int]:
    """For every member of the group, the one whose shard it gets: each sends its own to exactly one."""
    owners: dict[tuple[int, ...], list[int]] = {}
    for number, device in enumerate(group):
        owners.setdefault(shard_number(device, step.before, mesh), []).append(number)
    found = [owners[shard_number(device, step.after, mesh)].pop() for device in group]
    assert sorted(found) == list(range(len(group)))
    return found


def shard_number(device: Device, placement: Placement, mesh: DeviceMesh) -> tuple[int, ...]:
    return tuple(part_number(device, axes, mesh) for axes in placement.dims)
