"""The property every rule must have: run device by device and put together as placed, it is the operator run whole.

Devices are simulated one after another in the plainest way: no shard_map, no mesh of JAX, no collective. What they
send each other inside the operator is what its strategy says: as many messages of the same kinds and bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.emit.exchange import Exchanger
from autopar.emit.local.localize import localize
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.factor_rule import FactorRule
from tests.ops.build import Built, Case, raw
from tests.ops.simulate import position as index
from tests.ops.simulate import run_devices

Coordinates = dict[str, int]
# the second has all strategies of x = 2 too
MESHES = (
    DeviceMesh.of({"x": 4}),
    DeviceMesh.of({"x": 2, "y": 2}),
)
FEW = 4
"""Strategies of one operator on one mesh that every run of the tests tries; the slow ones try far more."""


def name_of(value: Case | DeviceMesh) -> str:
    """What a case, or a mesh, is called as a parameter."""
    return value.name if isinstance(value, Case) else str(value)


def check_rule(built: Built, rule: FactorRule, mesh: DeviceMesh, most: int = FEW) -> int:
    """Checks every strategy of the rule, at most so many of them, drawn alike each time; the number checked."""
    strategies = enumerate_strategies(rule, mesh)
    if len(strategies) > most:
        chosen = np.random.default_rng(0).choice(len(strategies), most, replace=False)
        strategies = tuple(strategies[n] for n in sorted(chosen))
    for strategy in strategies:
        check_strategy(built, strategy, mesh)
    return len(strategies)


def check_strategy(built: Built, strategy: Strategy, mesh: DeviceMesh) -> None:
    """Raises AssertionError if the strategy does not compute what the operator computes."""
    rng = np.random.default_rng(0)
    axes = [axis for _, given in strategy.factors for axis in given]
    operands = [
        distribute(value, tensor.shape, placement, mesh, rng)
        for value, tensor, placement in zip(built.values, built.op.ins, strategy.ins, strict=True)
    ]
    devices = list(places(axes, mesh))

    def device(place: Coordinates, exchanger: Exchanger) -> list[np.ndarray]:
        run = localize(built.op, strategy, mesh, lambda along: index(place, along, mesh), exchanger)
        return [raw(result) for result in run(*(part(operand, place) for operand in operands))]

    results, messages = run_devices(devices, mesh, device)
    sent = Counter(
        (message.kind, message.axes, message.size_bytes(mesh), message.hop) for message in messages
    )
    said = Counter(
        (e.kind, e.axes, e.size_bytes, e.hop)
        for e in strategy.exchanges
        for _ in range(max(1, e.rounds))
    )
    assert sent == said, f"{built.op.kind} sends {sent}, not as it says: {strategy}"
    local = list(zip(devices, results, strict=True))
    for n, (whole, placement) in enumerate(zip(built.results, strategy.outs, strict=True)):
        shards = [(place, results[n]) for place, results in local]
        joined = join(shards, built.op.outs[n].shape, whole, placement, mesh)
        assert_close(joined, whole, f"{built.op.kind}: result {n} of {strategy}")


def places(axes: list[str], mesh: DeviceMesh) -> Iterator[Coordinates]:
    """The coordinates of every device along `axes`."""
    sizes = dict(mesh.axes)
    for numbers in product(*(range(sizes[axis]) for axis in axes)):
        yield dict(zip(axes, numbers, strict=True))


def window(
    place: Coordinates, shape: tuple[int, ...], placement: Placement, mesh: DeviceMesh
) -> tuple[slice, ...]:
    """What a device holds of a tensor."""
    sizes = placement.local_shape(shape, mesh)
    starts = [
        size * index(place, axes, mesh) for size, axes in zip(sizes, placement.dims, strict=True)
    ]
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def distribute(
    value: Any, shape: tuple[int, ...], placement: Placement, mesh: DeviceMesh, rng: Any
) -> Any:
    """The whole tensor, or its random parts where it is unreduced; with what `part` needs."""
    parts = (
        spread(value, placement.kind, mesh.product(placement.unreduced), rng)
        if placement.unreduced
        else [value]
    )
    return parts, shape, placement, mesh


def part(operand: Any, place: Coordinates) -> Any:
    """The shard of one device."""
    parts, shape, placement, mesh = operand
    return parts[index(place, placement.unreduced, mesh)][window(place, shape, placement, mesh)]


def spread(value: np.ndarray, kind: str, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Random values that are `value` when they are added up, or when their maximum or minimum is taken."""
    value = np.asarray(value)
    if kind == "sum":
        parts = [rng.integers(0, 5, value.shape).astype(value.dtype) for _ in range(count - 1)]
        return [*parts, (value - sum(parts)).astype(value.dtype)]
    owner = rng.integers(0, count, value.shape)
    if value.dtype == bool:
        neutral = np.full(value.shape, kind == "min")
        return [np.where(owner == n, value, neutral) for n in range(count)]
    sign = -1 if kind == "max" else 1
    others = [value + sign * rng.integers(0, 5, value.shape) for _ in range(count)]
    return [np.where(owner == n, value, others[n]).astype(value.dtype) for n in range(count)]


def join(
    shards: list[tuple[Coordinates, np.ndarray]],
    shape: tuple[int, ...],
    whole: np.ndarray,
    placement: Placement,
    mesh: DeviceMesh,
) -> np.ndarray:
    """The tensor that the shards are claimed to make; replicas must agree."""
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[placement.kind]
    found: dict[tuple[Any, ...], np.ndarray] = {}
    for place, shard in shards:
        assert shard.shape[: len(shape)] == placement.local_shape(shape, mesh), (
            "a shard has another shape"
        )
        copy = tuple(n for axis, n in place.items() if axis not in placement.varying_axes)
        key = (copy, index(place, placement.split_axes, mesh))
        found[key] = combine(found[key], shard) if key in found else shard
    full = np.zeros_like(whole)
    for place, _ in shards:
        copy = tuple(n for axis, n in place.items() if axis not in placement.varying_axes)
        shard = found[copy, index(place, placement.split_axes, mesh)]
        first = found[(0,) * len(copy), index(place, placement.split_axes, mesh)]
        assert_close(shard, first, "replicas differ")
        full[window(place, shape, placement, mesh)] = shard
    return full


def assert_close(found: np.ndarray, expected: np.ndarray, message: str) -> None:
    """Equal numbers, to the precision of float32 (bfloat16) where they are not integers."""
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected, err_msg=message)
        return
    tolerance = 1e-4 if expected.dtype.itemsize > 2 else 5e-2
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(
        found.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance, err_msg=message
    )
