"""Lent: results whose memory holds another value as large until they are written (`ops.holding`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.core.program import Compute, ShardedProgram
from autopar.memory.account import Lives
from autopar.memory.in_place import own_results
from autopar.ops.traits import is_fusible


@dataclass
class _Place:
    """The memory of a result that is written at a position, element by element or not, and free before from another."""

    written: int
    is_over: bool
    free: int = 0

    def holds(self, start: int, stop: int) -> bool:
        """Whether a value may lie here that is held at start <= position < stop; the last that reads it may write."""
        return self.free <= start and stop <= self.written + self.is_over


def bytes_if_lent(program: ShardedProgram, lives: Lives, donated: Sequence[int]) -> int:
    """The most bytes that a device holds while it runs `program`, whose values have these `lives`.

    Values as large as a result that lies in no donated argument lie there, one at a time, if they are gone when it is
    written: those made first, where the result is written first. A result that is made element by element is written
    over what is read last for it.
    """
    places = _places(program, donated)
    held = lives.held() + lives.beside
    for n in np.argsort(lives.start, kind="stable").tolist():
        size = int(lives.size[lives.values[n]])
        start = int(lives.start[n])
        stop = int(lives.stop[n])
        for place in places.get(size, ()):
            if place.holds(start, stop):
                place.free = stop
                held[start:stop] -= size
                break

    return lives.fixed_bytes + int(held.max(initial=0))


def _places(program: ShardedProgram, donated: Sequence[int]) -> dict[int, list[_Place]]:
    """By bytes, the results that are made and lie in no donated argument, those first that are written first."""
    found: dict[int, list[_Place]] = {}
    own = {*own_results(program, donated)}
    for position, one in enumerate(program.instructions):
        is_over = isinstance(one, Compute) and is_fusible(one.op)
        for value in one.outs:
            if value in own:
                size = program.device_bytes(value)
                found.setdefault(size, []).append(_Place(position, is_over))

    return found
