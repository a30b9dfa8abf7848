"""Local processes that run one script under `jax.distributed`: started, shown, and stopped together."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

from autopar.distributed.ports import usable_port
from autopar.distributed.variables import (
    ACCELERATORS,
    ARRIVAL,
    BIND,
    COORDINATOR,
    COUNT,
    CPU_DEVICES,
    FAILURE,
    NUMBER,
)
from autopar.errors import InvalidOption, JobError

LOOPBACK = "127.0.0.1"
STDOUT = "stdout"
STDERR = "stderr"
_POLL_S = 0.01
_TOGETHER_S = 0.1  # those that end within it of the first count as seen with it
# After a failure the others can save nothing together, and JAX takes SIGTERM for a notice: they do not end by it.
_GRACE_AFTER_FAILURE_S = 2.0
_LAST_LINES = 20
_TAIL_BYTES = 16 * 1024
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """A script and the processes that run it, at least one, numbered from 0.

    Each has `devices_per_process` devices, None: as JAX finds them. Process N writes into `log_dir`/rank.N/stdout and
    stderr. Process 0 listens at `port`, None: a free one. `timeout_s` after the first is ready for the others all have
    to be; `grace_s` after a signal they are killed.
    """

    script: Path
    arguments: tuple[str, ...] = ()
    processes: int = 1
    devices_per_process: int | None = None
    log_dir: Path = Path("log_output")
    port: int | None = None
    timeout_s: float = 300.0
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise InvalidOption(f"launch: {self.processes} processes: expected at least 1")
        if self.devices_per_process is not None and self.devices_per_process < 1:
            raise InvalidOption(
                f"launch: {self.devices_per_process} devices for each process: expected at least 1"
            )
        if not self.script.is_file():
            raise InvalidOption(f"launch: there is no script {str(self.script)!r}")

    def folder(self, number: int) -> Path:
        """Where process `number` writes."""
        return self.log_dir / f"rank.{number}"

    def arrival(self, number: int) -> Path:
        """The file that process `number` makes when it is ready for the others."""
        return self.folder(number) / "arrived"

    def failure(self, number: int) -> Path:
        """The file in which process `number` says when it failed."""
        return self.folder(number) / "failed"

    def environment(self, number: int, port: int) -> dict[str, str]:
        """The variables of process `number`, where process 0 listens at `port`."""
        told = {
            COORDINATOR: f"{LOOPBACK}:{port}",
            BIND: f"{LOOPBACK}:{port}",
            COUNT: str(self.processes),
            NUMBER: str(number),
            ARRIVAL: str(self.arrival(number).absolute()),
            FAILURE: str(self.failure(number).absolute()),
            "PYTHONUNBUFFERED": "1",
        }

        count = self.devices_per_process
        if count is not None:
            own = range(number * count, (number + 1) * count)
            told[CPU_DEVICES] = str(count)
            told[ACCELERATORS] = ",".join(map(str, own))
        return {**os.environ, **told}


def launch(job: Job, out: BinaryIO, err: BinaryIO) -> int:
    """Runs the processes of `job` until all have ended, and stops all when one fails or this one gets a signal.

    What process 0 writes appears on `out` and `err` at once. SIGINT, SIGTERM and SIGHUP are passed on, so that the
    processes can save; a second one kills them. On Linux they end with this process too, however it ends.

    Returns:
      0; the exit code of the first that failed, of which the last lines are shown on `err`; 128 + n of signal n.

    Raises:
      JobError: if the port is in use, or a process does not come: names it.
    """
    port = usable_port(LOOPBACK, job.port or 0)
    with _signals() as caught, ExitStack() as leaving:
        ranks: list[_Rank] = []
        leaving.callback(_killed, ranks)
        ranks.extend(_started(job, number, port) for number in range(job.processes))

        logs = (job.folder(0) / name for name in (STDOUT, STDERR))
        files = [leaving.enter_context(log.open("rb")) for log in logs]
        shown = _Shown(files, (out, err))
        leaving.callback(shown.update)
        return _Watch(job, ranks, caught, shown).run()


@dataclass(frozen=True)
class _Rank:
    """One process. It leads a session of its own, so that a signal reaches what it started too, and none twice."""

    number: int
    process: subprocess.Popen[bytes]
    folder: Path

    def send(self, number: int) -> None:
        """Sends a signal to this process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class _Shown:
    """What processes write, as it appears: what is added to `files`, each on its stream, out and err."""

    def __init__(self, files: Sequence[BinaryIO], streams: tuple[BinaryIO, BinaryIO]) -> None:
        self._files = files
        self._streams = streams

    def update(self) -> None:
        """Shows what was added since the last call."""
        for file, stream in zip(self._files, self._streams, strict=True):
            added = file.read()
            if added:
                stream.write(added)
                stream.flush()

    def say(self, text: str) -> None:
        """Shows a line of the launcher's own."""
        self.update()
        err = self._streams[1]
        err.write(f"autopar launch: {text}\n".encode())
        err.flush()


class _Watch:
    """The processes of a job until they have ended."""

    def __init__(self, job: Job, ranks: Sequence[_Rank], caught: list[int], shown: _Shown) -> None:
        self._job = job
        self._ranks = ranks
        self._caught = caught
        self._shown = shown
        self._first_s: float | None = None
        self._all_came = job.processes == 1

    def run(self) -> int:
        """The exit code of the job, as `launch`."""
        while True:
            self._shown.update()
            codes = [rank.process.poll() for rank in self._ranks]
            if self._caught:
                return self._stopped()
            if any(codes):
                return self._failed()
            if all(code == 0 for code in codes):
                return 0
            self._check_arrivals()
            sleep(_POLL_S)

    def _stopped(self) -> int:
        """After a signal: passed on, then time to save."""
        number = self._caught[0]
        for rank in self._ranks:
            rank.send(number)
        name = signal.Signals(number).name
        self._shown.say(
            f"{name}: the processes have {self._job.grace_s:g} s to save; another one kills them"
        )
        self._wait(self._job.grace_s, 1)
        return 128 + number

    def _failed(self) -> int:
        """After a failure: the others end too. The first that failed is not always the first that is seen."""
        sleep(_TOGETHER_S)
        failed = [rank for rank in self._ranks if rank.process.poll()]
        failed.sort(key=self._failed_ns)
        for rank in self._ranks:
            rank.send(signal.SIGTERM)
        self._wait(_GRACE_AFTER_FAILURE_S, 0)

        for rank in reversed(failed):  # the first is the last that is read
            self._shown.say(f"rank {rank.number} {_ended(rank.process.returncode)}")
            if rank.number:  # of process 0 all was shown
                self._shown.say(_end_of(rank))
        code = failed[0].process.returncode
        return code if code > 0 else 128 - code

    def _failed_ns(self, rank: _Rank) -> int:
        """When `rank` failed by its own word; 0 for one that could say nothing: it was killed, or the disk is full."""
        said = self._job.failure(rank.number)
        return int(said.read_text() or 0) if said.exists() else 0

    def _wait(self, limit_s: float, signals: int) -> None:
        """Until all have ended, `limit_s` are over, or more than `signals` signals have come."""
        end_s = monotonic() + limit_s
        while any(rank.process.poll() is None for rank in self._ranks):
            self._shown.update()
            if monotonic() > end_s or len(self._caught) > signals:
                return
            sleep(_POLL_S)

    def _check_arrivals(self) -> None:
        """Whether all came in time, counted from the first.

        Raises:
          JobError: if not.
        """
        if self._all_came:
            return
        missing = [rank for rank in self._ranks if not self._job.arrival(rank.number).exists()]
        self._all_came = not missing
        if len(missing) == len(self._ranks):
            return

        self._first_s = self._first_s or monotonic()
        if missing and monotonic() - self._first_s > self._job.timeout_s:
            for rank in missing:
                self._shown.say(_end_of(rank))
            numbers = ", ".join(str(rank.number) for rank in missing)
            raise JobError(
                f"rank {numbers} did not come within {self._job.timeout_s:g} s: it has not reached "
                f"autopar.distributed.init(), in which the others wait"
            )


# One process ----------------------------------------------------------------------------------------------------------


def _started(job: Job, number: int, port: int) -> _Rank:
    folder = job.folder(number)
    folder.mkdir(parents=True, exist_ok=True)
    for file in (job.arrival(number), job.failure(number)):
        file.unlink(missing_ok=True)
    command = [sys.executable, str(job.script), *job.arguments]

    with (folder / STDOUT).open("wb") as out, (folder / STDERR).open("wb") as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=job.environment(number, port),
            start_new_session=True,
            preexec_fn=_ends_with_parent(),
        )
    return _Rank(number, process, folder)


def _ends_with_parent() -> Callable[[], None] | None:
    """What a child calls before it becomes another program: the kernel kills it when the launcher is gone."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def tell_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # gone before the kernel was told
            os._exit(1)

    return tell_kernel


def _killed(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        rank.send(signal.SIGKILL)
    for rank in ranks:
        rank.process.wait()


@contextmanager
def _signals() -> Generator[list[int]]:
    """The signals that come in the meantime, in order; this process does not end by them."""
    caught: list[int] = []

    def catch(number: int, _frame: object) -> None:
        caught.append(number)

    before = {number: signal.signal(number, catch) for number in _SIGNALS}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# How one ended --------------------------------------------------------------------------------------------------------


def _ended(code: int) -> str:
    return (
        f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    )


def _end_of(rank: _Rank) -> str:
    """The last lines that a process wrote: of its errors, or of its output if there are none."""
    for name in (STDERR, STDOUT):
        path = rank.folder / name
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        if lines:
            return "\n".join([f"the end of {path}:", *lines])
    return f"it wrote nothing into {rank.folder}"
