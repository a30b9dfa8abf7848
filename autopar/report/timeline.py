"""Timeline: the schedule of a step in the trace event format, as Perfetto and chrome://tracing show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autopar.core.program import Compute, Move, ShardedProgram
from autopar.errors import writing
from autopar.passes.schedule import Event, LoopSpan, StepSchedule

_PROCESS = 1
_THREADS = {False: 1, True: 2}
_NAMES = {1: "computation", 2: "communication"}
_MICROSECONDS = 1e6


@dataclass(frozen=True)
class Timeline:
    """One device's step: two threads of events, in the trace event format. All devices do the same at the same time.

    Of a loop the first round is shown in full, inside of a slice for all rounds.
    """

    function: str
    program: ShardedProgram
    schedule: StepSchedule

    @property
    def makespan_s(self) -> float:
        """Seconds of the step."""
        return self.schedule.makespan_s

    def events(self) -> list[dict[str, Any]]:
        """The trace events: names of process and threads, then the slices, in microseconds."""
        slices = [
            *map(self._span, self._spans()),
            *(self._slice(e) for e in self.schedule.events if e.end_s > e.start_s),
        ]
        return [*self._names(), *sorted(slices, key=lambda s: (s["ts"], -s["dur"], s["tid"]))]

    def to_json(self) -> str:
        """The trace as JSON, for https://ui.perfetto.dev or chrome://tracing."""
        return (
            json.dumps({"displayTimeUnit": "ms", "traceEvents": self.events()}, allow_nan=False)
            + "\n"
        )

    def save(self, path: str | Path) -> None:
        """Writes the trace to `path`.

        Raises:
          AutoparError: if it cannot be written.
        """
        with writing("timeline", path):
            Path(path).write_text(self.to_json(), encoding="utf-8")

    def _names(self) -> Iterator[dict[str, Any]]:
        process = f"a device of {self.program.mesh}: {self.function}"
        yield {
            "ph": "M",
            "name": "process_name",
            "pid": _PROCESS,
            "tid": 0,
            "args": {"name": process},
        }

        for thread, name in _NAMES.items():
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": _PROCESS,
                "tid": thread,
                "args": {"name": name},
            }

    def _spans(self) -> list[tuple[LoopSpan, bool]]:
        """The regions that take time, each on the threads that it occupies."""
        spans = [span for span in self.schedule.spans if span.end_s > span.start_s]
        return [
            (span, thread)
            for span in spans
            for thread in (False, True)
            if span.communicates or not thread
        ]

    def _span(self, span_on: tuple[LoopSpan, bool]) -> dict[str, Any]:
        span, communicates = span_on
        kind = self.program.tree.kind(span.region)
        args = {"runs in a round of what is around it": span.rounds, "shown": "the first"}
        return _event(
            f"{kind} x {span.rounds:g}", "region", communicates, span.start_s, span.end_s, args
        )

    def _slice(self, event: Event) -> dict[str, Any]:
        one = event.instruction
        args: dict[str, Any] = {"runs": event.runs, "alone_us": event.time_s * _MICROSECONDS}
        if isinstance(one, Move):
            category = "collective" if event.communicates else "local move"
            name = f"{one.kind}[{','.join(one.axes)}]"
            args |= {
                "role": one.role,
                "bytes": one.size_bytes,
                "source": one.source,
                "reason": one.reason,
            }
        else:
            category = one.op.phase
            name = one.op.kind
            args |= {"source": one.op.source, "scope": one.op.scope, "role": one.op.phase}
            args |= {
                "bytes": sum(self.program.local_bytes(v) for v in (*one.ins, *one.outs)),
                "local": _types(self, one),
            }

        shown = f"{name} ({args['source']})" if args["source"] else name
        return _event(shown, category, event.communicates, event.start_s, event.end_s, args)


def _event(
    name: str, category: str, communicates: bool, start_s: float, end_s: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": _PROCESS,
        "tid": _THREADS[communicates],
        "ts": start_s * _MICROSECONDS,
        "dur": (end_s - start_s) * _MICROSECONDS,
        "args": args,
    }


def _types(timeline: Timeline, one: Compute) -> str:
    """What a device holds of operands and results."""
    mesh = timeline.program.mesh

    def show(values: tuple[int, ...]) -> str:
        placed = (timeline.program.values[v] for v in values)
        return ", ".join(
            f"{v.tensor.dtype}{list(v.placement.local_shape(v.tensor.shape, mesh))}" for v in placed
        )

    return f"{show(one.ins)} -> {show(one.outs)}"
