"""How a process of a job ends if it fails: at once, where JAX would wait five minutes for others that wait for it."""

from __future__ import annotations

import builtins
import os
import sys
from inspect import currentframe
from pathlib import Path
from threading import current_thread, main_thread
from time import monotonic_ns, sleep
from types import TracebackType
from typing import Any, NoReturn

from autopar.distributed.variables import FAILURE

# What JAX raises mostly says that another process is gone: that one is to be the first that fails.
_BLAMING_OTHERS_S = 1.0
_NAMES_OF_EXIT = ("exit", "quit")
_BYTE = 0xFF  # of an exit code the system keeps the lowest one


def end_at_once_if_failing(blaming_others: type[Exception]) -> None:
    """From now on exceptions that nothing catches, and `sys.exit` or `exit` of anything but 0, end this process.

    What is open is closed before: `finally` and `with` are left as ever. What is to run at exit does not: it is there
    that JAX waits. Exceptions `blaming_others` end it a little later.
    """
    show = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        show(kind, error, where)
        if hasattr(sys, "ps1"):  # typed at a prompt, which goes on
            return
        if isinstance(error, blaming_others):
            _flush()
            sleep(_BLAMING_OTHERS_S)
        _end(130 if isinstance(error, KeyboardInterrupt) else 1)

    sys.excepthook = end
    leave = sys.exit

    def leave_at_once(status: Any = None, /) -> NoReturn:
        if current_thread() is main_thread():
            raise _Exit(status)
        leave(status)

    sys.exit = leave_at_once
    for name in _NAMES_OF_EXIT:
        if hasattr(builtins, name):  # python -S has none of them
            setattr(builtins, name, leave_at_once)


class _Exit(SystemExit):
    """What `sys.exit` raises. If nothing has caught it the interpreter asks for its code: no frame does."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        here = currentframe()
        if name == "code" and here is not None and here.f_back is None:
            _end_as_told(found)
        return found


def _end_as_told(code: object) -> None:
    """As the interpreter takes a code: None is 0, what is no number is shown."""
    if code is None or code == 0:
        return
    if isinstance(code, int):
        _end(code & _BYTE)
    sys.stderr.write(f"{code}\n")
    _end(1)


def _end(code: int) -> NoReturn:
    try:
        _flush()
        told = os.environ.get(FAILURE)
        if told is not None:
            Path(told).write_text(str(monotonic_ns()))
    finally:  # on a full disk too
        os._exit(code)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
