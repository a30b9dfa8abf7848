"""Two pieces of work side by side: compiled loops let another thread run, so that both processors work."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


def side_by_side(work: Callable[[A], T], one: A, other: A) -> tuple[T, T]:
    """What `work` makes of `one` and of `other`, where neither reads what the other writes."""
    later = other_thread().submit(work, other)
    try:
        return work(one), later.result()
    finally:
        wait([later])  # an interruption leaves nothing behind that still writes


@cache
def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def other_thread() -> ThreadPoolExecutor:
    """The other thread, kept: to start one takes as long as some sweeps."""
    return ThreadPoolExecutor(1, thread_name_prefix="autopar-solve")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=other_thread.cache_clear)  # threads are not forked
