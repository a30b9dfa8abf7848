"""Trainer: the loop around a step, for those who want to write none. All that it does can be done without it."""

from __future__ import annotations

import importlib.util
import json
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from inspect import isroutine
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from autopar._compat import untyped_jax
from autopar.api.plan import Plan
from autopar.checkpoint import Checkpoints
from autopar.core.sizes import rounded_bytes
from autopar.emit.several import this_process
from autopar.errors import InvalidOption

Hook = Callable[[int, Any, Any], object]


@dataclass(frozen=True, eq=False)
class Fitted:
    """Where a job stands: its state, how many steps were done, the last figures told; whether SIGTERM ended it."""

    state: Any
    step: int
    figures: dict[str, float]
    preempted: bool


@dataclass(frozen=True)
class Trainer:
    """Runs a step over batches, from the last checkpoint on, and says how it goes.

    Attributes:
      log_directory: where `metrics.jsonl` and, if tensorboardX is installed, its files are written; None: nowhere.
      log_every: steps from one line to the next.
      show: whether the first process shows its progress.
    """

    log_directory: str | Path | None = None
    log_every: int = 10
    show: bool = True

    def fit(
        self,
        step: Plan | Callable[..., Any],
        state: Any,
        loader: Iterable[Any],
        steps: int,
        *,
        checkpoint: Checkpoints | None = None,
        hooks: Sequence[Hook] = (),
    ) -> Fitted:
        """The state after `steps` steps, those of the last checkpoint among them, or where batches or a hook end.

        Args:
          step: gives a new state and the loss, or a dict of figures, for a state and a batch; or a plan of such a step.
          state: to begin with. For a plan it may be a function that makes it, as for `plan.init`.
          loader: batches, each a tuple of the step's other arguments, or its only one. One with `get_state` and
            `set_state` goes on where the checkpoint was; of another the batches of the steps done are taken again.
          steps: how many in all.
          checkpoint: saved when due, at SIGTERM, and at the end.
          hooks: called after every step with the number of steps done, the state, the other result; True ends the job.

        Raises:
          AutoparError: `log_every` is below 1; or as `Checkpoints.restore` and `save`.
        """
        if self.log_every < 1:
            raise InvalidOption(f"log_every is {self.log_every}: log every 1 or more steps")

        plan = step if isinstance(step, Plan) else None
        kept = checkpoint and checkpoint.restore(plan or state)
        done = kept.step if kept else 0
        if kept:
            state = kept.state
        elif plan:
            state = plan.init(state) if isroutine(state) else plan.place(state)
        run: Any = plan.compile() if plan else step
        data: Any = loader if hasattr(loader, "set_state") else None
        if kept and data is not None:
            data.set_state(kept.data)
        first = done if data is None else 0

        with ExitStack() as closing:
            log = _Log(self, done, steps, closing)
            for batch in log.timed(islice(loader, first, first + max(steps - done, 0))):
                state, result = run(state, *(batch if isinstance(batch, tuple) else (batch,)))
                done = done + 1
                plan = next(iter(getattr(run, "made", ())), plan)
                log.began(done, result)
                said = [hook(done, state, result) for hook in hooks]
                if checkpoint:
                    checkpoint.save(done, state, data=data, plan=plan)
                if True in said or (checkpoint and checkpoint.preempted):
                    break
            figures = log.ended()

        if checkpoint and done:
            checkpoint.save(done, state, data=data, plan=plan, force=True)
            checkpoint.wait()
        return Fitted(state, done, figures, bool(checkpoint and checkpoint.preempted))


class _Log:
    """What a job says of itself: a progress line, lines of JSON, TensorBoard; in the first process only."""

    def __init__(self, trainer: Trainer, done: int, steps: int, closing: ExitStack) -> None:
        is_first = this_process() == 0
        self._every = trainer.log_every
        self._sinks: list[Callable[[int], object]] = []
        if is_first and trainer.log_directory is not None:
            self._open(Path(trainer.log_directory), done, closing)

        self._bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._task = self._bar.add_task(f"step {done}", total=steps, completed=done)
        self._prints = is_first and trainer.show and not self._bar.console.is_interactive
        if is_first and trainer.show and not self._prints:
            closing.enter_context(self._bar)
        self._figures: dict[str, float] = {}
        self._restart()

    def timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches; the time that each is waited for counts, and its rows."""
        asked_s = perf_counter()
        for batch in batches:
            self._waited_s = self._waited_s + perf_counter() - asked_s
            self._rows = self._rows + np.shape(untyped_jax.tree.leaves(batch)[0])[0]
            yield batch
            asked_s = perf_counter()

    def began(self, done: int, result: Any) -> None:
        """A step was begun that gives `result`; the one before is waited for, so that no more than two run."""
        untyped_jax.block_until_ready(self._last)
        self._last = done, result
        if done % self._every == 0:
            self.ended()

    def ended(self) -> dict[str, float]:
        """The figures of the last step, which are told if they were not."""
        if self._last is None:
            return self._figures

        done, result = self._last
        named: dict[str, Any] = {**result} if isinstance(result, dict) else {"loss": result}
        own = {name: float(value) for name, value in named.items()}
        spent_s = perf_counter() - self._began_s
        rate = self._rows / spent_s
        wait = self._waited_s / spent_s
        peak = _peak_bytes()
        self._figures = own | {"examples_per_s": rate, "wait_share": wait, "memory_bytes": peak}
        self._restart()

        shown = "  ".join([f"step {done}", *(f"{name} {own[name]:.4g}" for name in own)])
        measured = f"{rate:,.1f} examples/s  wait {wait:.0%}  memory {rounded_bytes(peak)}"
        self._bar.update(self._task, completed=done, description=f"{shown}  {measured}")
        if self._prints:
            self._bar.console.print(f"{shown}  {measured}", soft_wrap=True)
        for sink in self._sinks:
            sink(done)
        return self._figures

    def _restart(self) -> None:
        self._last: tuple[int, Any] | None = None
        self._rows = 0
        self._waited_s = 0.0
        self._began_s = perf_counter()

    def _open(self, directory: Path, done: int, closing: ExitStack) -> None:
        """Opens the files, without what was written behind step `done`."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "metrics.jsonl"
        old = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        kept = [line for line in old if line.endswith("\n") and json.loads(line)["step"] <= done]
        if kept != old:  # a kill in between loses none
            path.with_suffix(".new").write_text("".join(kept), encoding="utf-8")
            path.with_suffix(".new").replace(path)

        lines = closing.enter_context(path.open("a", encoding="utf-8", buffering=1))
        self._sinks.append(lambda n: lines.write(json.dumps({"step": n, **self._figures}) + "\n"))
        if importlib.util.find_spec("tensorboardX") is not None:
            writer: Any = importlib.import_module("tensorboardX").SummaryWriter
            board = closing.enter_context(writer(str(directory), purge_step=done + 1))
            self._sinks.append(lambda n: [board.add_scalar(*it, n) for it in self._figures.items()])


def _peak_bytes() -> int:
    """The most memory that a device of this process has held; the process itself where devices do not say."""
    told: list[Any] = [device.memory_stats() for device in untyped_jax.local_devices()]
    peaks = [stats["peak_bytes_in_use"] for stats in told if stats]
    return max(peaks) if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
