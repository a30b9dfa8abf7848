"""The greedy route that MindSpore infers, as its sources say: at most one axis on a dim, one axis a step.

Reference: MindSpore, redistribution_operator_infer.cc. Rounds of splits, then exchanges, then gathers; where nothing
applies, the first dim still wrong is gathered.
"""

from __future__ import annotations

from autopar.core.placement import Placement

Move = tuple[Placement, Placement]


class Greedy:
    """The route from `source` to `target`; `exchange` allows all_to_all, else it is a gather and a slice."""

    def __init__(self, source: Placement, target: Placement, *, exchange: bool) -> None:
        self._now = [axes[0] if axes else None for axes in source.dims]
        self._target = [axes[0] if axes else None for axes in target.dims]
        self._open = [dim for dim in range(len(self._now)) if self._now[dim] != self._target[dim]]
        self._exchange = exchange
        self.moves: list[Move] = []

    def run(self) -> list[Move]:
        while self._open:
            before = len(self.moves)
            while self._split() | self._exchanges():
                pass
            self._gather()
            if self._open and len(self.moves) == before:
                self._set({self._open[0]: None})
        return self.moves

    def _holder(self, axis: str | None) -> int | None:
        return next((dim for dim in self._open if self._now[dim] == axis), None)

    def _split(self) -> bool:
        done = False
        for dim in list(self._open):
            if (
                self._now[dim] is None
                and self._target[dim] is not None
                and self._holder(self._target[dim]) is None
            ):
                self._set({dim: self._target[dim]})
                done = True
        return done

    def _exchanges(self) -> bool:
        done = False
        for dim in list(self._open):
            if self._now[dim] is None and self._target[dim] is not None:
                holder = self._holder(self._target[dim])
                if holder is not None:
                    self._move(holder, dim)
                    done = True
        return done

    def _move(self, holder: int, dim: int) -> None:
        axis = self._now[holder]
        if self._exchange:
            self._set({holder: None, dim: axis})
        else:
            self._set({holder: None})
            self._set({dim: axis})

    def _gather(self) -> None:
        for dim in list(self._open):
            if self._now[dim] is not None and self._now[dim] not in self._target:
                self._set({dim: None})

    def _set(self, changed: dict[int, str | None]) -> None:
        before = self._placement()
        for dim, axis in changed.items():
            self._now[dim] = axis
        self._open = [dim for dim in range(len(self._now)) if self._now[dim] != self._target[dim]]
        self.moves.append((before, self._placement()))

    def _placement(self) -> Placement:
        return Placement(tuple(() if axis is None else (axis,) for axis in self._now))
