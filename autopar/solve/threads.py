"""Two pieces of work side by side: compiled loops let another thread run, so that both processors work."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

T = TypeVar("T")


def side_by_side(work: Callable[[int, int], T], end: int, stop: int) -> tuple[T, T]:
    """What `work` makes of 0 <= i < end and of end <= i < stop, where neither reads what the other writes."""
    later = _other().submit(work, end, stop)
    try:
        return work(0, end), later.result()
    finally:
        wait([later])  # an interruption leaves nothing behind that still writes


@cache
def _other() -> ThreadPoolExecutor:
    """The other thread, kept: to start one takes as long as some sweeps."""
    return ThreadPoolExecutor(1, thread_name_prefix="autopar-solve")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_other.cache_clear)  # threads are not forked
