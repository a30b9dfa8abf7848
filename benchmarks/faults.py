"""Faults: a job of two processes is killed (SIGKILL) again and again, one process at a random moment, and goes on.

    python -m benchmarks.faults [--kills 20] [--seed 0] [--json FILE] [--record]

Half of the kills wait for a checkpoint that is being written. Counted are checkpoints that were complete when the job
was killed and from which, or from later ones, it did not go on: none may be. Every loss, of every life, is compared
with those of a job that was left alone, as the text that was written. Twenty kills take six minutes on two busy cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import monotonic, sleep

from rich import box
from rich.table import Table

from benchmarks.end_to_end import describe_machine
from benchmarks.fault_job import EVERY, RESUMED, STEP_S
from benchmarks.record import ROOT, Screen, add_record_option, record

PROCESSES = 2
TIMEOUT_S = 240.0
LONGEST_S = 60 * STEP_S
"""A job runs at most as long before it is killed, or until its next checkpoint is written."""
SAVE_S = 0.1
LOG = "launch.log"
_POLL_S = 0.002


@dataclass(frozen=True)
class Life:
    """One start of the job, and how it ended.

    Attributes:
      resumed: the step that it went on from.
      complete: the last checkpoint that was complete when it ended; 0 if there was none.
      killed: the number of the process that was killed; None if none was.
      saving: whether a checkpoint was being written.
      start_s: seconds from the start to the first step.
      losses: as they were written, by step.
    """

    resumed: int
    complete: int
    killed: int | None
    saving: bool
    start_s: float
    losses: dict[int, str]

    @property
    def told(self) -> str:
        """A line about it."""
        saving = ", saving" if self.saving else ""
        return (
            f"rank {self.killed} at step {max(self.losses, default=0)}{saving}; it went on from {self.resumed} after "
            f"{self.start_s:.1f} s"
        )


class Job:
    """The job in a directory, under `autopar launch`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)

    def started(self, steps: int) -> subprocess.Popen[bytes]:
        """The launcher, which goes on from what is there."""
        job = str(ROOT / "benchmarks" / "fault_job.py")
        launch = ["launch", "-n", str(PROCESSES), "--devices-per-process", "1"]
        logs = ["--log-dir", str(self.directory / "logs")]
        command = [
            sys.executable,
            "-m",
            "autopar",
            *launch,
            *logs,
            job,
            str(self.directory),
            str(steps),
        ]
        with (self.directory / LOG).open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )

    def losses(self) -> dict[int, str]:
        """What was written of each step's loss."""
        path = self.directory / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        told = [json.loads(line) for line in lines if line.endswith("\n")]
        return {line["step"]: repr(line["loss"]) for line in told}

    def checkpoints(self) -> list[int]:
        """The steps of the checkpoints that are complete."""
        names = [path.name for path in (self.directory / "checkpoints").glob("*")]
        return [int(name) for name in names if name.isdigit()]

    def is_saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return any((self.directory / "checkpoints").glob("*.orbax-checkpoint-tmp"))

    def begun(self, steps: int) -> tuple[subprocess.Popen[bytes], int]:
        """The launcher, once a step was made, and the step that the job went on from.

        Raises:
          TimeoutError: no step is made.
          RuntimeError: the job fails.
        """
        told = self.directory / RESUMED
        told.unlink(missing_ok=True)
        launcher = self.started(steps)
        self.wait_for(lambda: told.exists() and told.read_text() != "", launcher)
        return launcher, int(told.read_text())

    def wait_for(self, is_so: Callable[[], bool], launcher: subprocess.Popen[bytes]) -> None:
        """Until something is so, while the job runs.

        Raises:
          TimeoutError: it takes too long.
          RuntimeError: the job ends.
        """
        end_s = monotonic() + TIMEOUT_S
        while not is_so():
            if launcher.poll() is not None:
                raise RuntimeError(f"the job failed:\n{(self.directory / LOG).read_text()[-3000:]}")
            if monotonic() > end_s:
                raise TimeoutError(f"nothing came of the job in {TIMEOUT_S:.0f} s")
            sleep(_POLL_S)

    def life(self, draw: random.Random) -> Life:
        """Starts the job, lets it run for a while, and kills one of its processes."""
        began_s = monotonic()
        launcher, resumed = self.begun(steps=10**9)
        start_s = monotonic() - began_s
        try:
            sleep(draw.uniform(0, LONGEST_S))
            if draw.random() < 0.5:
                self.wait_for(self.is_saving, launcher)
                sleep(draw.uniform(0, SAVE_S))
            killed = draw.randrange(PROCESSES)
            complete = max(self.checkpoints(), default=0)
            saving = self.is_saving()
            os.kill(_ranks(launcher)[killed], signal.SIGKILL)
            launcher.wait(TIMEOUT_S)
        finally:
            launcher.terminate()
            launcher.wait()
        return Life(resumed, complete, killed, saving, start_s, self.losses())


def _ranks(launcher: subprocess.Popen[bytes]) -> list[int]:
    """The processes of the job, in the order in which they were started."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    return [int(child) for child in children]


def measure(folder: Path, kills: int, draw: random.Random) -> tuple[list[Life], Life, int]:
    """The lives that were ended by a kill, the last one, and how many losses differ from those of a job left alone."""
    job = Job(folder / "killed")
    lives: list[Life] = []
    for number in range(kills):
        lives.append(job.life(draw))
        print(f"kill {number + 1} of {kills}: {lives[-1].told}", flush=True)

    began_s = monotonic()
    steps = max(lives[-1].losses, default=0) + 2 * EVERY
    launcher, resumed = job.begun(steps)
    start_s = monotonic() - began_s
    _finish(launcher)
    last = Life(resumed, steps, None, False, start_s, job.losses())

    alone = Job(folder / "alone")
    _finish(alone.begun(steps)[0])
    wanted = alone.losses()
    if len(wanted) != steps or last.losses.keys() != wanted.keys():
        raise RuntimeError(
            f"{len(wanted)} and {len(last.losses)} losses were told of {steps} steps"
        )
    return lives, last, differing([*lives, last], wanted)


def _finish(launcher: subprocess.Popen[bytes]) -> None:
    if launcher.wait(TIMEOUT_S):
        raise RuntimeError(f"the job ended with {launcher.returncode}")


def differing(lives: Sequence[Life], wanted: Mapping[int, str]) -> int:
    """How many losses, of all lives, are not those that are wanted, as far as these are known."""
    return sum(
        wanted.get(step, loss) != loss for life in lives for step, loss in life.losses.items()
    )


def lost(lives: Sequence[Life], last: Life) -> int:
    """How many checkpoints that were complete at a kill were not gone on from, nor later ones."""
    after = [*lives[1:], last]
    return sum(other.resumed < one.complete for one, other in zip(lives, after, strict=True))


def shown(lives: Sequence[Life], last: Life, others: int) -> Table:
    """What came of the kills."""
    after = [*lives[1:], last]
    again = [
        max(one.losses, default=0) - other.resumed for one, other in zip(lives, after, strict=True)
    ]
    starts = [life.start_s for life in after]
    ranks = " and ".join(
        f"{sum(life.killed == rank for life in lives)} of rank {rank}" for rank in range(PROCESSES)
    )
    table = Table(
        box=box.SIMPLE_HEAD, title=f"{len(lives)} kills of a job of {PROCESSES} processes"
    )
    table.add_column("what")
    table.add_column("found", justify="right")
    rows = {
        "kills survived": f"{len(after)} of {len(lives)} ({ranks})",
        "of these while a checkpoint was written": str(sum(life.saving for life in lives)),
        "complete checkpoints lost": str(lost(lives, last)),
        f"steps done again, of {EVERY} from one checkpoint to the next": _spread(again, "{:.0f}"),
        "from the start to the first step behind the checkpoint": _spread(starts, "{:.1f} s"),
        "the same of a first start": f"{lives[0].start_s:.1f} s",
        "steps in all": str(max(last.losses)),
        "losses that differ from a job left alone": str(others),
    }
    for what, found in rows.items():
        table.add_row(what, found)
    return table


def _spread(numbers: Sequence[float], form: str) -> str:
    return f"median {form.format(median(numbers))}, at most {form.format(max(numbers))}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Kills and prints.

    Raises:
      SystemExit: a complete checkpoint was lost, or a loss differs.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    add_record_option(parser)
    given = parser.parse_args(arguments)
    console, machine = Screen(), describe_machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))

    with tempfile.TemporaryDirectory(prefix="autopar-faults-") as folder:
        lives, last, others = measure(Path(folder), given.kills, random.Random(given.seed))
    console.print(shown(lives, last, others))
    if given.json is not None:
        found = {"machine": machine, "lives": [asdict(life) for life in (*lives, last)]}
        given.json.write_text(json.dumps({**found, "differing": others}, indent=1) + "\n")
    if lost(lives, last) or others:
        raise SystemExit("a complete checkpoint was lost, or a loss differs")
    record(__file__, given.record, console.tables)


if __name__ == "__main__":
    main()
