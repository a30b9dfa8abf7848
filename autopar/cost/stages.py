"""Stages: layers on parts of the devices, one after another, and micro-batches that follow each other through them.

A schedule says in which order a device runs forward and backward passes of micro-batches. Its time is that of a
simulation of these orders (`run_schedule`), its memory what a device holds between both passes of a micro-batch. Where
all stages take equally long there are closed forms. A chain of layers is cut into stages by dynamic programming.

Reference: Huang et al. 2019 (GPipe), Narayanan et al. 2019 (PipeDream) and 2021 (interleaved stages), Zheng et al. 2022
(Alpa).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.errors import InvalidOption, NoFeasiblePlan

Kind = Literal["gpipe", "1f1b", "interleaved"]
KINDS: tuple[Kind, ...] = ("gpipe", "1f1b", "interleaved")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """In which order `micro_batches` go through `stages`.

    "gpipe": all forward passes, then all backward passes. "1f1b": a backward pass as soon as there is one, else a
    forward pass, with no more micro-batches on their way than stages are left. "interleaved": a stage has `interleave`
    chunks of layers, each as far behind the last as there are stages, and goes on as in 1f1b with these.

    Invariants: numbers are >= 1; only an interleaved schedule has several chunks, at least two, and its micro-batches
    come in groups of as many as there are stages.
    """

    kind: Kind
    stages: int
    micro_batches: int
    interleave: int = 1

    def __post_init__(self) -> None:
        numbers = (self.stages, self.micro_batches, self.interleave)

        if self.kind not in KINDS or min(numbers) < 1:
            raise InvalidOption(
                f"a schedule is one of {', '.join(KINDS)} with numbers >= 1, not {self}"
            )
        if (self.kind == "interleaved") != (self.interleave > 1):
            raise InvalidOption(
                f"an interleaved schedule, and no other, has several chunks on a stage: {self}"
            )
        if self.kind == "interleaved" and self.micro_batches % self.stages:
            raise InvalidOption(
                f"an interleaved schedule needs micro-batches in groups of {self.stages}, one for each stage: {self}"
            )

    @property
    def bubble_share(self) -> float:
        """The share of a device's time in which it waits, where all stages take equally long and sending takes no time.

        (p - 1) / (v m + p - 1)     p stages, m micro-batches, v chunks
        """
        waiting = self.stages - 1
        return waiting / (self.interleave * self.micro_batches + waiting)

    def in_flight(self, stage: int) -> int:
        """The most micro-batches whose activations a stage holds at once; of an interleaved one those of its chunks."""
        behind = self.stages - stage - 1
        if self.kind == "gpipe":
            return self.micro_batches
        if self.kind == "1f1b":
            return min(self.micro_batches, behind + 1)
        started = 2 * behind + (self.interleave - 1) * self.stages
        return min(self.micro_batches * self.interleave, started + 1)


class Pass(NamedTuple):
    """One pass of a micro-batch through a chunk of layers on a stage."""

    is_forward: bool
    micro_batch: int
    chunk: int


def orders(schedule: Schedule) -> tuple[tuple[Pass, ...], ...]:
    """The passes of every stage in the order in which it runs them."""
    return tuple(tuple(_order(schedule, stage)) for stage in range(schedule.stages))


def _order(schedule: Schedule, stage: int) -> Iterator[Pass]:
    forward = list(_passes(schedule, is_forward=True))
    backward = list(_passes(schedule, is_forward=False))
    ahead = len(forward) if schedule.kind == "gpipe" else schedule.in_flight(stage) - 1

    yield from forward[:ahead]
    for n, one in enumerate(forward[ahead:]):
        yield one
        yield backward[n]
    yield from backward[len(forward) - ahead :]


def _passes(schedule: Schedule, *, is_forward: bool) -> Iterator[Pass]:
    """The passes of one direction: of interleaved chunks as many micro-batches at a time as there are stages."""
    chunks = range(schedule.interleave)
    group = schedule.stages if schedule.kind == "interleaved" else schedule.micro_batches
    for first in range(0, schedule.micro_batches, group):
        for chunk, n in product(chunks if is_forward else reversed(chunks), range(group)):
            yield Pass(is_forward, first + n, chunk)


@dataclass(frozen=True)
class Timeline:
    """What a schedule takes: its time, how long each stage waits, and the most activations that each holds at once."""

    time_s: float
    waits_s: tuple[float, ...]
    held: tuple[int, ...]


def run_schedule(
    schedule: Schedule,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    transfer_s: float = 0.0,
) -> Timeline:
    """The schedule, pass by pass: each begins when its stage is free and what it reads has arrived.

    Args:
      schedule: the order of passes.
      forward_s: the time of one micro-batch's forward pass through each stage; its chunks have equal parts of it.
      backward_s: likewise of its backward pass.
      transfer_s: the time from the end of a pass until the next stage has its result; the sender goes on meanwhile.
    """
    waiting = [list(order) for order in orders(schedule)]
    done: dict[tuple[int, Pass], float] = {}
    free = [0.0] * schedule.stages
    busy = [0.0] * schedule.stages
    held = [0] * schedule.stages
    most = [0] * schedule.stages

    while any(waiting):
        moved = False
        for stage, order in enumerate(waiting):
            while (
                order and (ready := _ready(schedule, stage, order[0], done, transfer_s)) is not None
            ):
                one = order.pop(0)
                took = (forward_s if one.is_forward else backward_s)[stage] / schedule.interleave
                free[stage] = done[stage, one] = max(free[stage], ready) + took
                busy[stage] += took
                held[stage] += 1 if one.is_forward else -1
                most[stage] = max(most[stage], held[stage])
                moved = True
        if not moved:
            raise RuntimeError(f"{schedule} waits for itself")

    end = max(free)
    return Timeline(end, tuple(end - time for time in busy), tuple(most))


def _ready(
    schedule: Schedule,
    stage: int,
    one: Pass,
    done: dict[tuple[int, Pass], float],
    transfer_s: float,
) -> float | None:
    """When what a pass reads is there; None if it is not known yet."""
    place = one.chunk * schedule.stages + stage
    last = schedule.stages * schedule.interleave - 1
    if one.is_forward and place == 0:
        return 0.0
    if not one.is_forward and place == last:
        return done.get((stage, Pass(True, one.micro_batch, one.chunk)))

    before = place - 1 if one.is_forward else place + 1
    chunk, source = divmod(before, schedule.stages)
    end = done.get((source, Pass(one.is_forward, one.micro_batch, chunk)))
    return None if end is None else end + (transfer_s if source != stage else 0.0)


# A chain of layers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """What one layer takes of a stage: seconds and kept bytes for each micro-batch, and the bytes of its state.

    `output_bytes` is what it sends to the next stage, where that begins behind it.
    """

    forward_s: float
    backward_s: float
    kept_bytes: int = 0
    state_bytes: int = 0
    output_bytes: int = 0


@dataclass(frozen=True)
class Cut:
    """A chain of layers cut into stages: stage n has the layers from `starts[n]` on. `time_s` is that of all
    micro-batches, `peak_bytes` the most that each stage holds.
    """

    starts: tuple[int, ...]
    time_s: float
    peak_bytes: tuple[int, ...]


def cut_chain(
    layers: Sequence[Layer],
    schedule: Schedule,
    *,
    bytes_per_s: float = float("inf"),
    latency_s: float = 0.0,
    memory_limit_bytes: float = float("inf"),
) -> Cut:
    """The cut of a chain into the schedule's stages of least time, within memory.

        time = sum over stages of t_n  +  (m - 1) max over stages of t_n

    t_n is the time of one micro-batch on stage n, forward and backward, and of sending what it makes and what comes
    back for that. The formula is exact for equal stages; for others `run_schedule` tells the time of a cut. For every
    bound on the slowest stage the sum is minimised by dynamic programming, from the last stage on (Alpa, section 5.2).

    Args:
      layers: in order.
      schedule: not interleaved; how many activations a stage holds depends on how many stages follow.
      bytes_per_s: of the link between stages.
      latency_s: of each message on it.
      memory_limit_bytes: of each stage.

    Raises:
      InvalidOption: fewer layers than stages, or an interleaved schedule.
      NoFeasiblePlan: no cut is within memory.
    """
    if schedule.kind == "interleaved" or len(layers) < schedule.stages:
        raise InvalidOption(
            f"{len(layers)} layers cannot be cut into {schedule.stages} stages of a {schedule.kind} schedule: pass as "
            f"many layers or more, and a schedule that is not interleaved"
        )

    times = _segment_times(layers, bytes_per_s, latency_s)
    fits = [
        _fitting(layers, schedule, stage, memory_limit_bytes) for stage in range(schedule.stages)
    ]
    best: tuple[float, tuple[int, ...]] | None = None
    for slowest in np.unique(times[np.isfinite(times)]).tolist():
        if best is not None and schedule.micro_batches * slowest >= best[0]:
            break
        found = _least_sum(times, fits, slowest)
        if found is not None:
            total = found[0] + (schedule.micro_batches - 1) * _slowest(times, found[1], len(layers))
            best = min(best or (float("inf"), ()), (total, found[1]))

    if best is None:
        raise NoFeasiblePlan(
            f"no cut of {len(layers)} layers into {schedule.stages} stages keeps each within "
            f"{memory_limit_bytes:.0f} bytes with {schedule.micro_batches} micro-batches ({schedule.kind})"
        )
    return Cut(best[1], best[0], _peaks(layers, schedule, best[1]))


def _segment_times(layers: Sequence[Layer], bytes_per_s: float, latency_s: float) -> Floats:
    """times[i, j] of one micro-batch on layers i to j - 1; infinite where there are none."""
    count = len(layers)
    ends = [0.0, *accumulate(layer.forward_s + layer.backward_s for layer in layers)]
    sums = np.array(ends)
    times = sums[None, :] - sums[:, None]
    sent = [2 * (layer.output_bytes / bytes_per_s + latency_s) for layer in layers[:-1]]
    times[:, 1:count] += np.array(sent)
    times[np.tri(count + 1, dtype=bool)] = np.inf
    return times


def _fitting(
    layers: Sequence[Layer], schedule: Schedule, stage: int, limit: float
) -> NDArray[np.bool_]:
    """Which segments a stage can hold."""
    held = schedule.in_flight(stage)
    sizes = [layer.state_bytes + held * layer.kept_bytes for layer in layers]
    sums = np.array([0, *accumulate(sizes)], dtype=np.float64)
    return sums[None, :] - sums[:, None] <= limit


def _least_sum(
    times: Floats, fits: Sequence[NDArray[np.bool_]], slowest: float
) -> tuple[float, tuple[int, ...]] | None:
    """The least sum of times over cuts into stages that take `slowest` at most, and where these start."""
    count = len(times) - 1
    least = np.full(count + 1, np.inf)
    least[count] = 0.0
    chosen: list[NDArray[np.intp]] = []
    for fit in reversed(fits):
        through = np.where(fit & (times <= slowest), times, np.inf) + least[None, :]
        chosen.append(np.argmin(through, axis=1))
        least = np.min(through, axis=1)

    if not np.isfinite(least[0]):
        return None
    starts: list[int] = []
    start = 0
    for ends in reversed(chosen):
        starts.append(start)
        start = int(ends[start])
    return float(least[0]), tuple(starts)


def _slowest(times: Floats, starts: tuple[int, ...], count: int) -> float:
    return max(float(times[i, j]) for i, j in zip(starts, (*starts[1:], count), strict=True))


def _peaks(layers: Sequence[Layer], schedule: Schedule, starts: tuple[int, ...]) -> tuple[int, ...]:
    bounds = zip(starts, (*starts[1:], len(layers)), strict=True)
    return tuple(
        sum(layer.state_bytes + schedule.in_flight(n) * layer.kept_bytes for layer in layers[i:j])
        for n, (i, j) in enumerate(bounds)
    )
