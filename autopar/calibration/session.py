"""Session: goes through the cases with a clock, until all are measured or it is told to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from types import FrameType
from typing import Any

from autopar.calibration.cases import Case
from cost_models.fit import Sample

Clock = Callable[[Case], float]
"""The seconds of a case."""
Told = Callable[[int, int, Case], None]
"""Hears of every case before it is measured: its number, how many there are, and the case."""
STALLED = 5.0
"""How many times as long a byte of a large collective may take as one of a smaller: see `stalled`."""


@dataclass
class Stop:
    """When to end: at `deadline_s` of `monotonic`, or once `asked`. The reason says which."""

    deadline_s: float
    asked: bool = field(default=False)

    @property
    def reason(self) -> str:
        """Why it is to end; "" while it is not."""
        if self.asked:
            return "interrupted"
        return "out of time" if monotonic() >= self.deadline_s else ""


@dataclass(frozen=True)
class Measured:
    """What was measured, and what was not and why."""

    samples: tuple[Sample, ...]
    missing: tuple[tuple[Case, str], ...]


def measure(
    cases: Sequence[Case],
    clock: Clock,
    stop: Stop,
    *,
    agree: Callable[[float], float] = float,
    failures: tuple[type[Exception], ...] = (),
    told: Told | None = None,
) -> Measured:
    """Measures `cases` in turn, until `stop` says to end in any process.

    A case that raises one of `failures` is missing, with the message as the reason; the next one follows. Collectives
    that were `stalled` are measured again behind all others, and are missing if they stall again.
    """
    found: dict[Case, Sample] = {}
    missing: dict[Case, str] = {}

    def go_through(some: Sequence[Case], before: int) -> None:
        for number, case in enumerate(some):
            if agree(1.0 if stop.reason else 0.0):
                reason = stop.reason or "ended by another process"
                missing.update((left, reason) for left in some[number:] if left not in found)
                return
            if told is not None:
                told(before + number, before + len(some), case)
            try:
                found[case] = case.sample(clock(case))
            except failures as error:
                found.pop(case, None)
                missing[case] = str(error).strip().split("\n")[0][:200] or type(error).__name__

    go_through(cases, 0)
    if again := stalled(found):
        go_through(again, len(cases))
        for case in stalled(found):
            missing[case] = f"took more than {STALLED:g} times as long a byte as a smaller one"
            del found[case]

    return Measured(tuple(found.values()), tuple(missing.items()))


def stalled(measured: Mapping[Case, Sample]) -> list[Case]:
    """The collectives that took `STALLED` times as long a byte as a smaller one of their kind and groups.

    Large ones take less of a byte than small ones, or, once caches hold them no more, a few times as much. TCP may take
    a thousand times as long: a connection over loopback that many small messages went through has carried 16 MiB in
    5.6 s (Linux 6.18), call after call, and in 6 ms some messages later.
    """
    collectives = [
        (case, sample) for case, sample in measured.items() if sample.what == "collective"
    ]

    return [
        case
        for case, one in collectives
        if any(
            (other.kind, other.mesh, other.axes) == (one.kind, one.mesh, one.axes)
            and other.size_bytes < one.size_bytes
            and one.time_s / one.size_bytes > STALLED * other.time_s / other.size_bytes
            for _, other in collectives
        )
    ]


@contextmanager
def stopped_by_interrupt(stop: Stop) -> Generator[None]:
    """Within, the first Ctrl-C asks `stop` to end after the case at hand; a second one ends at once.

    Processes that measure together have to end at the same case, so none may break off inside one. In a thread that
    is not the main one signals stay as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before: Any = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            signal.default_int_handler(number, frame)
        stop.asked = True

    signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
