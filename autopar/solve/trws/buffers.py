"""Buffers of large arrays: what one leaves, the next takes. To touch fresh pages takes longer than what is done there.

Where the kernel joins pages to huge ones it may take ten times as long again, or not: pages here stay as they are.
"""

from __future__ import annotations

import mmap
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGE = 1 << 22  # bytes: smaller arrays are the allocator's
_SPARE: ContextVar[list[mmap.mmap] | None] = ContextVar("_SPARE", default=None)


@contextmanager
def reused() -> Generator[None]:
    """Inside, arrays lie where others did that are gone. At the end of the outermost what is spare goes."""
    if _SPARE.get() is not None:
        yield
        return
    before = _SPARE.set([])
    try:
        yield
    finally:
        _SPARE.reset(before)


def empty(count: int, dtype: type[np.generic] | np.dtype[Any]) -> NDArray[Any]:
    """A vector of so many entries, whatever they are."""
    size, spare = count * np.dtype(dtype).itemsize, _SPARE.get()
    if spare is None or size < _LARGE:
        return np.empty(count, dtype=dtype)
    place = min((i for i, pages in enumerate(spare) if len(pages) >= size), key=lambda i: len(spare[i]), default=None)
    pages = _pages(size) if place is None else spare.pop(place)
    return np.asarray(_Buffer(pages, spare)).view(dtype)[:count]


def _pages(size: int) -> mmap.mmap:
    """Pages that take no memory until they are touched; in whole numbers of the widest entries."""
    size += -size % mmap.PAGESIZE
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)


class _Buffer:
    """Pages that arrays lie in; they are spare when none is left that does."""

    def __init__(self, pages: mmap.mmap, spare: list[mmap.mmap]) -> None:
        self._pages, self._spare = pages, spare
        address = np.frombuffer(pages, dtype=np.uint8).ctypes.data
        self.__array_interface__ = {"shape": (len(pages),), "typestr": "|u1", "data": (address, False), "version": 3}

    def __del__(self) -> None:
        self._spare.append(self._pages)
