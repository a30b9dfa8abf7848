"""Kernels are written once: compiled where the extra `fast` (numba) is installed, run as plain Python elsewhere.

A kernel takes flat arrays and numbers and loops over them. Nothing is reordered: both ways give the same floats.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

FAST = find_spec("numba") is not None


def compiled(kernel: Callable[P, R]) -> Callable[P, R]:
    """The kernel, compiled at its first call if numba is there; other threads run while it does."""
    if not FAST:
        return kernel
    numba: Any = import_module("numba")  # without stubs
    return numba.njit(cache=True, nogil=True)(kernel)
