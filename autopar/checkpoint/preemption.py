"""Preemption: SIGTERM, of which all processes learn at one step.

Where `jax.distributed` runs, JAX catches the signal in whatever process gets it, and finds a step that none has passed.
In a process by itself the next step is that step.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from jax.experimental import multihost_utils

from autopar._compat import untyped_jax

_untyped_multihost: Any = multihost_utils


class Preemption:
    """Whether this job is to end. Catches SIGTERM until it is closed, where JAX does not: in the main thread only."""

    def __init__(self) -> None:
        self._is_signalled = False
        self._previous: Any = None
        self._catches = (
            not untyped_jax.distributed.is_initialized()
            and threading.current_thread() is threading.main_thread()
        )
        if self._catches:
            self._previous = signal.signal(signal.SIGTERM, self._caught)

    def reached(self, step: int) -> bool:
        """Whether all processes are to save at this step, and end; for all to ask at every step, in order."""
        if untyped_jax.distributed.is_initialized():
            return bool(_untyped_multihost.reached_preemption_sync_point(step))
        return self._is_signalled

    def close(self) -> None:
        """Gives SIGTERM back to whoever had it."""
        if self._catches:
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)
            self._catches = False

    def _caught(self, _number: int, _frame: FrameType | None) -> None:
        self._is_signalled = True
