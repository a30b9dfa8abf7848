"""Another process for what may end the one that runs it: started when first needed, and again after it has ended."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Timer
from typing import Any

import numpy as np

from autopar.discover.worker import Message, by_run, read, write

LONGEST_S = 30.0
"""A run that takes longer is ended, its process with it."""
IDLE_S = 60.0
"""After so long without a request the process ends: it takes some 100 MB."""
_ENDING_S = 1.0
_WORKER = Path(__file__).with_name("worker.py")
_LIBRARIES = "jax.experimental."
"""What of JAX is imported there as here: it makes known what operators call."""

Array = np.ndarray[Any, Any]
Results = list[tuple[Array, ...]]


class Ended(Exception):
    """The process ended while it ran an operator, or could not be started; the text says how."""


class _Idle(Exception):
    """The process had just ended for want of requests."""


@dataclass(eq=False)
class Process:
    """Runs programs of StableHLO on CPU in a process of their own, one at a time, from any thread."""

    _running: subprocess.Popen[bytes] | None = None
    _known: set[int] = field(default_factory=set[int])
    _lock: Lock = field(default_factory=Lock)

    def run(self, number: int, program: str, operands: Sequence[Sequence[Array]]) -> Results | None:
        """The results of `program`, which always has this `number`, for each of several runs' `operands`.

        None where it cannot be compiled or run.

        Raises:
          Ended: if running it ends the process or takes longer than `LONGEST_S`, or there is no process.
        """
        with self._lock:
            try:
                return self._run(number, program, operands)
            except _Idle:
                self._start()
            try:
                return self._run(number, program, operands)
            except _Idle:
                raise Ended("it ended its process") from None

    def stop(self) -> None:
        """Ends the process, if there is one."""
        running = self._running
        self._running = None
        if running is None:
            return
        running.kill()
        running.communicate()  # closes the pipes, and waits
        self._known.clear()

    def _run(
        self, number: int, program: str, operands: Sequence[Sequence[Array]]
    ) -> Results | None:
        if self._running is None or self._running.poll() is not None:
            self._start()

        if number not in self._known:
            if self._ask(Message("compile", number, program)).what == "refused":
                return None
            self._known.add(number)

        arrays = tuple(np.asarray(operand) for run in operands for operand in run)
        answer = self._ask(Message("run", number, arrays=arrays, runs=len(operands)))
        if answer.what == "refused":
            return None

        if answer.runs != len(operands):
            self.stop()
            raise Ended("its process answered nonsense")

        return by_run(answer)

    def _start(self) -> None:
        self.stop()
        if not sys.executable:
            raise Ended("there is no Python executable to start a process with")

        try:
            self._running = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER), str(IDLE_S)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for this process, which then ends that one
            )
        except OSError as error:
            raise Ended(f"no process could be started: {error}") from error

        for name in sorted(
            name for name in sys.modules if name.startswith(_LIBRARIES) and name.count(".") == 2
        ):
            self._ask(Message("import", text=name))

    def _ask(self, request: Message) -> Message:
        """The answer to `request`.

        Raises:
          Ended: if there is none, or none that can be read: a process that was damaged may write anything.
        """
        running = self._running
        late = Event()
        assert running is not None
        assert running.stdin is not None
        assert running.stdout is not None

        def expire() -> None:
            late.set()
            running.kill()

        limit = Timer(LONGEST_S, expire)
        limit.start()
        answer: Message | None = None
        try:
            write(running.stdin, request)
            answer = read(running.stdout)
        except (OSError, OverflowError, TypeError, ValueError):
            answer = None
        finally:
            limit.cancel()
            code = running.poll() if answer is not None else self._exit_code(running)

        if answer is not None:
            return answer
        if late.is_set():
            raise Ended(f"it took longer than {LONGEST_S:g} s")
        if code == 0:  # it was idle; or an operator left it so, which it will do again
            raise _Idle

        raise Ended(f"it ended its process (exit code {code})")

    def _exit_code(self, running: subprocess.Popen[bytes]) -> int:
        """How the process ended; it is ended if it has not."""
        try:
            return running.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            self.stop()


def _environment() -> dict[str, str]:
    """As here, but that JAX has one CPU, and 64 bits where it is given them."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))
    }
    own = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "JAX_ENABLE_X64": "1"}
    return kept | own | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


PROCESS = Process()
atexit.register(PROCESS.stop)
