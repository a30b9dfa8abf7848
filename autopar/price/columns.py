"""Columns: the placements of one tensor under each candidate of a variable, as arrays that many edges share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Column:
    """The placement of one tensor under each candidate of a variable.

    Candidate s has the placement `distinct[index[s]]`. `distinct` is one object for all columns of equal ones. On one
    device a tensor has its size over `parts[s]`; `numbers[s]` is the placement's number: equal where placements are.
    """

    distinct: tuple[Placement, ...]
    index: Ints
    parts: Ints
    numbers: Ints

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def unreduced(self) -> NDArray[np.bool_]:
        """Under which candidates the tensor is still to be reduced."""
        return np.array([bool(placement.unreduced) for placement in self.distinct], dtype=np.bool_)[self.index]

    def local_bytes(self, size_bytes: int) -> NDArray[np.float64]:
        """What one device holds of a tensor of `size_bytes` under each candidate."""
        return (size_bytes // self.parts).astype(np.float64)


@dataclass(eq=False)
class Columns:
    """Makes the columns on one mesh: one object for equal ones. Placements are looked at once for each object."""

    mesh: DeviceMesh
    _numbers: dict[Placement, int] = field(default_factory=dict[Placement, int])
    _by_id: dict[int, int] = field(default_factory=dict[int, int])
    _held: list[Placement] = field(default_factory=list[Placement])  # they keep their ids
    _parts: list[int] = field(default_factory=list[int])
    _distinct: dict[bytes, tuple[Placement, ...]] = field(default_factory=dict[bytes, tuple[Placement, ...]])
    _columns: dict[bytes, Column] = field(default_factory=dict[bytes, Column])

    def of(self, placements: tuple[Placement, ...]) -> Column:
        """The column of these placements."""
        ids, known = [*map(id, placements)], self._by_id
        fresh = {each: placement for each, placement in zip(ids, placements, strict=True) if each not in known}
        known.update((each, self._number(placement)) for each, placement in fresh.items())
        self._held += fresh.values()
        numbers = np.array([known[each] for each in ids], dtype=np.int64)
        key = numbers.tobytes()
        if key not in self._columns:
            self._columns[key] = self._column(placements, numbers)
        return self._columns[key]

    def _number(self, placement: Placement) -> int:
        number = self._numbers.setdefault(placement, len(self._parts))
        if number == len(self._parts):
            self._parts.append(self.mesh.product(placement.split_axes))
        return number

    def _column(self, placements: tuple[Placement, ...], numbers: Ints) -> Column:
        order = dict.fromkeys(numbers.tolist())
        place = {number: n for n, number in enumerate(order)}
        index = np.array([place[number] for number in numbers.tolist()], dtype=np.int64)
        by_number = dict(zip(numbers.tolist(), placements, strict=True))
        distinct = tuple(by_number[number] for number in order)
        shared = self._distinct.setdefault(np.array(list(order)).tobytes(), distinct)
        return Column(shared, index, np.array(self._parts, dtype=np.int64)[numbers], numbers)
