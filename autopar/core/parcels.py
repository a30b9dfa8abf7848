"""Parcels: what of a bucket of all-reduces is laid end to end, and what travels as it is."""

from __future__ import annotations

from collections.abc import Sequence

LARGE_BYTES = 2**18
"""What XLA's CPU compiler should get as it is. It joins all-reduces that can wait for each other into one of several
operands, without copies, but each operand takes a latency of its own: 0.17 ms among 8 devices on two cores, 0.07 among
4. To lay half a MiB of each of 8 devices end to end takes as long, where that goes well: 8 MiB 3.4 ms. Of few arrays,
and unequal ones, XLA asks of every element which it is from: 5 to 60 ms (2026-11-25)."""


def parcels(sizes: Sequence[int], apart_bytes: int | None) -> tuple[tuple[int, ...], ...]:
    """The positions of the values that travel together, those that are laid end to end first.

    Args:
      sizes: bytes of each value.
      apart_bytes: a value of at least so many travels as it is; None: all are laid end to end.
    """
    small = tuple(n for n, size in enumerate(sizes) if apart_bytes is None or size < apart_bytes)
    large = tuple((n,) for n in range(len(sizes)) if n not in small)
    return (small, *large) if small else large
