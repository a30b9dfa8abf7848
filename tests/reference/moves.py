"""Steps of a redistribution by their textbook meaning, without regard to `autopar.redistribute` and `autopar.emit`.

| step | what a group of devices does |
|---|---|
| all_gather | each gets all shards, end to end |
| all_to_all | each cuts its shard into as many chunks as there are devices, and sends the k-th to the k-th |
| reduce_scatter | the k-th gets the k-th chunk of the sum |
| all_reduce | each gets the sum, maximum or minimum |
| slice | the k-th keeps the k-th chunk of what all hold |
| mask | the first keeps the value, the others a neutral one |
| permute | each sends its shard to one device and gets one |
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Kind, Placement
from autopar.redistribute.step import Step
from tests.reference.devices import COMBINE, Device, Locals, groups, part, part_number


def apply_step(local: Locals, step: Step, mesh: DeviceMesh) -> Locals:
    """What the devices hold after `step` of what they hold before it."""
    after: Locals = {}
    for group in groups(step.axes, mesh):
        held = [local[device] for device in group]
        after.update(zip(group, apply_to_group(held, step, group, mesh), strict=True))
    return after


def apply_to_group(
    held: list[np.ndarray], step: Step, group: list[Device], mesh: DeviceMesh
) -> list[np.ndarray]:
    n = len(group)
    combine = COMBINE[step.before.kind]
    match step.kind:
        case "all_gather":
            return [np.concatenate(held, axis=step.dim)] * n
        case "slice":
            return [part(array, number, n, step.dim) for number, array in enumerate(held)]
        case "all_to_all":
            sent = [np.split(array, n, axis=step.to_dim) for array in held]
            return [
                np.concatenate([chunks[number] for chunks in sent], axis=step.dim)
                for number in range(n)
            ]
        case "all_reduce":
            return [reduce(combine, held)] * n
        case "reduce_scatter":
            assert step.before.kind == "sum"
            return np.split(reduce(combine, held), n, axis=step.dim)
        case "mask":
            return [
                held[0],
                *(np.full_like(array, neutral(step.after.kind, array.dtype)) for array in held[1:]),
            ]
        case "permute":
            return [held[sender] for sender in senders(step, group, mesh)]


def neutral(kind: Kind, dtype: np.dtype) -> object:
    """The value that changes nothing when combined by `kind`."""
    if kind == "sum":
        return 0
    if dtype.kind == "b":
        return kind == "min"
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.min if kind == "max" else limits.max
    return -np.inf if kind == "max" else np.inf


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
