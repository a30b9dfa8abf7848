"""Kernels are written once: compiled where the extra `fast` (numba) is installed, run as plain Python elsewhere.

A kernel takes flat arrays and numbers and loops over them. Nothing is reordered: both ways give the same floats.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

FAST = find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") != "1"


def compiled(kernel: Callable[P, R]) -> Callable[P, R]:
    """The kernel, compiled at its first call if numba is there; other threads run while it does."""
    return _compiled(kernel)


def compiled_inner(kernel: Callable[P, R]) -> Callable[P, R]:
    """As `compiled`, for what kernels call, over and over: it allocates nothing, nor copies slices.

    So it may do without counts of references, which take longer than its own work: numba moves one, atomically and
    for all threads, for every array of a tuple whenever that is read. What allocates nevertheless does not compile.
    """
    return _compiled(kernel, _nrt=False)  # numba's own tests use it; its documentation does not name it


def compiled_or(
    plain: Callable[P, R], compiled: Callable[[Callable[P, R]], Callable[P, R]] = compiled
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As `compiled` or `compiled_inner`, but `plain`, which gives the same by whole arrays, where there is no numba."""

    def choose(kernel: Callable[P, R]) -> Callable[P, R]:
        return compiled(kernel) if FAST else plain

    return choose


def _compiled(kernel: Callable[P, R], **flags: bool) -> Callable[P, R]:
    if not FAST:
        return kernel
    numba: Any = import_module("numba")  # without stubs
    return numba.njit(cache=True, nogil=True, **flags)(kernel)
