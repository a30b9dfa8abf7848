"""Tensors on numpy devices, in small integers: sums are exact. Steps are those of `tests.reference`.

The meaning of placements, written down without regard to `autopar.redistribute`. An unreduced tensor is one whose
devices hold parts that combine to the value.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Kind, Placement
from tests.reference.devices import (
    COMBINE,
    Device,
    Locals,
    devices,
    groups,
    part,
    part_number,
    shard,
)
from tests.reference.moves import apply_step, apply_to_group, senders, shard_number

__all__ = [
    "Device",
    "Locals",
    "apply_step",
    "apply_to_group",
    "assert_holds",
    "devices",
    "distribute",
    "groups",
    "part",
    "part_number",
    "senders",
    "shard",
    "shard_number",
]


def distribute(
    array: np.ndarray, placement: Placement, mesh: DeviceMesh, rng: np.random.Generator
) -> Locals:
    """The devices' shards; unreduced axes get random parts whose combination is `array`."""
    parts = random_parts(array, mesh.product(placement.unreduced), placement.kind, rng)
    return {
        device: shard(
            parts[part_number(device, placement.unreduced, mesh)], device, placement, mesh
        )
        for device in devices(mesh)
    }


def random_parts(
    array: np.ndarray, count: int, kind: Kind, rng: np.random.Generator
) -> list[np.ndarray]:
    noise = [rng.integers(1, 1000, array.shape) for _ in range(count - 1)]
    if kind == "sum":
        parts = [array - sum(noise), *noise]
    else:
        sign = -1 if kind == "max" else 1
        parts = [array, *(array + sign * change for change in noise)]
    order = rng.permuted(
        np.tile(np.arange(count).reshape(-1, *[1] * array.ndim), (1, *array.shape)), axis=0
    )
    return list(np.take_along_axis(np.stack(parts), order, axis=0))


def assert_holds(local: Locals, array: np.ndarray, placement: Placement, mesh: DeviceMesh) -> None:
    """The devices hold `array` as `placement` says."""
    for group in groups(placement.unreduced, mesh):
        combined = reduce(COMBINE[placement.kind], [local[device] for device in group])
        np.testing.assert_array_equal(
            combined, shard(array, group[0], placement, mesh), strict=True
        )
