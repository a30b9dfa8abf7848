"""Kernels are written once, as loops over flat arrays and numbers, and compiled at their first call, by numba.

Nothing is reordered: with NUMBA_DISABLE_JIT=1 they run as plain Python, and give the same floats.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def compiled(kernel: Callable[P, R]) -> Callable[P, R]:
    """The kernel, compiled at its first call; other threads run while it does."""
    return _compiled(kernel)


def compiled_inner(kernel: Callable[P, R]) -> Callable[P, R]:
    """As `compiled`, for what kernels call, over and over: it allocates nothing, nor copies slices.

    So it may do without counts of references, which take longer than its own work: numba moves one, atomically and
    for all threads, for every array of a tuple whenever that is read. What allocates nevertheless does not compile.
    """
    # numba's own tests use it; its documentation does not name it
    return _compiled(kernel, _nrt=False)


def _compiled(kernel: Callable[P, R], **flags: bool) -> Callable[P, R]:
    numba: Any = import_module("numba")  # without stubs
    return numba.njit(cache=True, nogil=True, **flags)(kernel)
