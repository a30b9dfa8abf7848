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
    def first(self) -> Ints:
        """The first candidate that has each of the distinct placements."""
        return np.unique(self.index, return_index=True)[1]

    @cached_property
    def unreduced(self) -> NDArray[np.bool_]:
        """Under which candidates the tensor is still to be reduced."""
        return np.array([bool(placement.unreduced) for placement in self.distinct], dtype=np.bool_)[
            self.index
        ]

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
    _distinct: dict[bytes, tuple[Placement, ...]] = field(
        default_factory=dict[bytes, tuple[Placement, ...]]
    )
    _columns: dict[bytes, Column] = field(default_factory=dict[bytes, Column])

    def of(self, placements: tuple[Placement, ...]) -> Column:
        """The column of these placements."""
        ids = [*map(id, placements)]
        known = self._by_id
        for each, placement in dict(zip(ids, placements, strict=True)).items():
            if each not in known:
                known[each] = self._number(placement)
                self._held.append(placement)
        numbers = np.array([*map(known.__getitem__, ids)], dtype=np.int64)
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
        by_number = dict(zip(numbers.tolist(), placements, strict=True))
        place = {number: n for n, number in enumerate(by_number)}
        index = np.array([*map(place.__getitem__, numbers.tolist())], dtype=np.int64)
        shared = self._distinct.setdefault(
            np.array([*by_number]).tobytes(), tuple(by_number.values())
        )
        return Column(shared, index, np.array(self._parts, dtype=np.int64)[numbers], numbers)
