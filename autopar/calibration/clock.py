"""Clock: the seconds of one round of a case on the devices, agreed on by all processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from autopar._compat import untyped_jax
from autopar.calibration.cases import Case
from autopar.calibration.programs import (
    Program,
    fresh_programs,
    inner_rounds,
    program_of,
    straight_programs,
)
from autopar.errors import AutoparError

Agree = Callable[[float], float]
"""A number of this process to the largest of all processes."""
LONG_S = 1.0
"""Calls that take so long are not repeated."""


class NoDifference(AutoparError):
    """A case that is a difference of two times, where there is none."""


@dataclass(frozen=True)
class JaxClock:
    """Times cases on `devices`: rounds until a call takes `call_s`, the median of `calls` of them.

    Of calls that take `LONG_S` one is enough: a link is slow, or stalls, and the time is better spent on other cases.

    On accelerators rounds are in a loop, which makes what a call costs by itself small beside what it repeats: what JAX
    does to begin it. On processors each round is a call, less the time of what is beside the case: `straight_programs`.
    """

    devices: tuple[Any, ...]
    agree: Agree
    call_s: float
    calls: int

    def __call__(self, case: Case) -> float:
        """Seconds of one round of `case`.

        Raises:
          NoDifference: if the case is a difference of two times, and there is none.
          whatever JAX raises if the devices cannot run it.
        """
        if case.what == "fresh":
            return self._fresh_s(case)
        if case.beside is None:
            return self._case_s(case)
        return _longer_s(
            self._case_s(case),
            self._case_s(case.beside),
            f"{case} takes no longer than {case.beside}",
        )

    def _case_s(self, case: Case) -> float:
        platform = self.devices[0].platform
        if platform != "cpu":
            return self._rounds_s(program_of(case, self.devices, inner_rounds(case, platform)))[0]
        case_s, beside_s = self._rounds_s(*straight_programs(case, self.devices))
        return _longer_s(case_s, beside_s, f"{case} takes no longer than what is beside it")

    def _rounds_s(self, first: Program, *others: Program) -> tuple[float, ...]:
        """Seconds of one round of each: as many in a call as the first needs, and the programs take turns."""
        programs = (first, *others)
        held = [program.operands for program in programs]

        def call(number: int, times: int) -> float:
            start = perf_counter()
            held[number] = untyped_jax.block_until_ready(
                programs[number].run(np.int32(times), *held[number])
            )
            return self.agree(perf_counter() - start)

        for number in range(len(programs)):
            call(number, 1)

        seconds = call(0, 1)
        times = 1
        while (seconds < self.call_s and times < 2**20) or (
            seconds < 4 * self.call_s and times < 4
        ):
            wanted = times * min(16.0, 1.0 + 1.2 * self.call_s / max(seconds, 1e-6))
            times = min(2**20, max(int(wanted), min(4, 2 * times)))
            seconds = call(0, times)

        count = self.calls if seconds < LONG_S else 1
        turns = [[call(number, times) for number in range(len(programs))] for _ in range(count)]
        rounds = [times * program.inner for program in programs]
        return tuple(
            median(mine) / each for mine, each in zip(zip(*turns, strict=True), rounds, strict=True)
        )

    def _fresh_s(self, case: Case) -> float:
        """How much longer a kernel takes whose result is in new memory than one that writes over its operand."""
        new, old, operand = fresh_programs(case, self.devices)
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * (2 * self.calls + 1)):
            start = perf_counter()
            made = untyped_jax.block_until_ready((new if number % 2 else old)(operand))
            times[bool(number % 2)].append(self.agree(perf_counter() - start))
            operand = operand if number % 2 else made
            del made
        return _longer_s(
            median(times[True][1:]), median(times[False][1:]), "new memory takes no longer than old"
        )


def _longer_s(long_s: float, short_s: float, otherwise: str) -> float:
    if long_s <= short_s:
        raise NoDifference(otherwise)
    return long_s - short_s


def sorted_devices(devices: Sequence[Any] | None) -> tuple[Any, ...]:
    """The devices of all processes, those of one process together."""
    given: Sequence[Any] = untyped_jax.devices() if devices is None else devices
    return tuple(sorted(given, key=lambda device: (device.process_index, device.id)))


def agreement() -> Agree:
    """How the processes present agree on a number: the largest."""
    if untyped_jax.process_count() == 1:
        return float
    from jax.experimental import multihost_utils

    gather: Any = multihost_utils.process_allgather
    return lambda value: float(np.max(gather(np.float32(value))))
