"""Measuring training steps on the devices that are present, and bringing up virtual ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from autopar._compat import make_mesh, untyped_jax
from autopar.errors import AutoparError

Step = Callable[..., tuple[Any, Any]]
"""step(state, *batch) -> (new state, loss)."""


@dataclass(frozen=True)
class Training:
    """The losses of all steps, and the median time of a step over blocks of steps, the first block left out."""

    losses: tuple[float, ...]
    step_time_s: float


def use_virtual_devices(count: int) -> None:
    """Makes JAX use the CPU, as at least `count` devices; to be called before JAX has done anything.

    Raises:
      AutoparError: if JAX has started already, on another platform or with fewer devices.
    """
    refused: Exception | None = None
    try:
        untyped_jax.config.update("jax_num_cpu_devices", count)
        untyped_jax.config.update("jax_platforms", "cpu")
    except RuntimeError as error:  # JAX has started: what it started with may do
        refused = error
    devices = untyped_jax.devices()
    if devices[0].platform != "cpu" or len(devices) < count:
        raise AutoparError(
            f"{count} virtual CPU devices are needed, but JAX runs on {len(devices)} {devices[0].platform} devices. "
            "Start a fresh process, or set JAX_PLATFORMS=cpu and JAX_NUM_CPU_DEVICES before JAX is first used."
        ) from refused


def describe_devices() -> str:
    """What JAX runs on, in words."""
    devices = untyped_jax.devices()
    if devices[0].platform == "cpu":
        return f"{len(devices)} virtual CPU devices that share the {os.cpu_count()} cores of this machine"
    return f"{len(devices)} devices of kind {devices[0].device_kind}"


def plain(step: Step) -> Step:
    """`step` under jax.jit, on one device."""
    return untyped_jax.jit(step)


def data_parallel(step: Step, batch_arrays: int, device_count: int) -> Step:
    """`step` under jax.jit with the batch split over all devices and the state on each of them: what XLA makes of it.

    Args:
      step: takes a state and the arrays of a batch, whose first dims `device_count` divides.
      batch_arrays: how many arrays a batch has.
      device_count: the devices, which must be there.
    """
    mesh = make_mesh((device_count,), ("data",))
    whole = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec("data"))
    return untyped_jax.jit(
        step, in_shardings=(whole, *[split] * batch_arrays), out_shardings=(whole, whole)
    )


def train(
    step: Step,
    state: Any,
    batches: Sequence[tuple[Any, ...]],
    block: int,
    on_block: Callable[[int], None] = lambda steps: None,
) -> Training:
    """Runs `step` on all `batches`, one after the other.

    Args:
      step: see `Step`.
      state: the state to start from.
      batches: the arrays of each step.
      block: steps between two looks at the clock; the first block, which compiles, is not timed if there is another.
      on_block: told after each block how many steps it had.
    """
    losses: list[Any] = []
    times: list[float] = []
    for first in range(0, len(batches), block):
        part = batches[first : first + block]
        start = perf_counter()
        for batch in part:
            state, loss = step(state, *batch)
            losses.append(loss)
        untyped_jax.block_until_ready((state, losses[-1]))
        times.append((perf_counter() - start) / len(part))
        on_block(len(part))
    return Training(tuple(float(loss) for loss in losses), median(times[1:] or times))
