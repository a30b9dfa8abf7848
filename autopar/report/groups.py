"""Groups: rows of a Report that say the same many times over, told once: fifty layers read like two."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Generic, TypeVar

from autopar.ops.traits import traits_of
from autopar.report.summary import CollectiveRow, OperatorRow, TensorRow

# The number of a layer: layers[3], and 'layer_3' where a dict holds them. Not w1 and w2: those are different things.
_NUMBER = re.compile(r"(?<=\[)\d+(?=\])|(?<=_)\d+(?='\])")
Row = TypeVar("Row")
RunRow = TypeVar("RunRow", OperatorRow, CollectiveRow)


@dataclass(frozen=True)
class TensorGroup:
    """Tensors whose paths differ in numbers only, of one shape, type and placement. `label` stands for their paths."""

    label: str
    members: tuple[TensorRow, ...]

    @property
    def local_bytes(self) -> int:
        """The bytes of all members on one device."""
        return sum(row.local_bytes for row in self.members)


@dataclass(frozen=True)
class RunGroup(Generic[RunRow]):
    """Rows of what runs: `members` many of it."""

    members: tuple[RunRow, ...]

    @property
    def time_s(self) -> float:
        """The seconds of all runs of all members."""
        return sum(row.runs * row.time_s for row in self.members)

    @property
    def runs(self) -> float:
        """The runs of all members in a step."""
        return sum(row.runs for row in self.members)


@dataclass(frozen=True)
class OperatorGroup(RunGroup[OperatorRow]):
    """Operators of one kind, phase, source line and strategy."""


@dataclass(frozen=True)
class CollectiveGroup(RunGroup[CollectiveRow]):
    """Collectives of one role, kind and source line over the same axes."""

    @property
    def size_bytes(self) -> float:
        """The bytes of all runs of all members."""
        return sum(row.runs * row.size_bytes for row in self.members)

    @property
    def exposed_s(self) -> float | None:
        """How much longer they make the step; None if that is not known."""
        known = [row.exposed_s for row in self.members if row.exposed_s is not None]
        return sum(known) if len(known) == len(self.members) else None


def group_tensors(
    rows: Sequence[TensorRow], among: Sequence[TensorRow] = ()
) -> tuple[TensorGroup, ...]:
    """`rows` in groups, in the order of their first members.

    A label has "*" for every number that differs where the group is all that the pattern matches in `rows` and
    `among`, else the numbers: params['layers'][*]['w'], params['layers'][0-2,5]['w'].
    """
    matching = Counter(_NUMBER.sub("*", name) for name in {row.name for row in (*rows, *among)})
    groups = _grouped(
        rows,
        lambda row: (
            _NUMBER.sub("*", row.name),
            row.shape,
            row.dtype,
            row.placement,
            row.local_bytes,
        ),
    )
    return tuple(TensorGroup(_label(group, matching), group) for group in groups)


def group_operators(rows: Iterable[OperatorRow]) -> tuple[OperatorGroup, ...]:
    """`rows` in groups, in the order of their first members."""
    groups = _grouped(
        rows, lambda row: (row.kind, row.phase, row.source, row.ins, row.outs, row.split)
    )
    return tuple(OperatorGroup(group) for group in groups)


def group_collectives(rows: Iterable[CollectiveRow]) -> tuple[CollectiveGroup, ...]:
    """`rows` in groups, the longest time first."""
    groups = [
        CollectiveGroup(g)
        for g in _grouped(rows, lambda row: (row.role, row.kind, row.axes, row.source))
    ]
    return tuple(sorted(groups, key=lambda group: -group.time_s))


def weighty(group: OperatorGroup, compute_time_s: float, least_share: float) -> bool:
    """Whether a group is worth a row: a contraction, or at least `least_share` of the time of computing."""
    if traits_of(group.members[0].kind).is_contraction:
        return True
    return group.time_s > 0 and group.time_s >= least_share * compute_time_s


def _grouped(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> list[tuple[Row, ...]]:
    found: dict[Hashable, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return [tuple(group) for group in found.values()]


def _label(group: tuple[TensorRow, ...], matching: Counter[str]) -> str:
    first = group[0].name
    pattern = _NUMBER.sub("*", first)
    places = [
        sorted(set(numbers)) for numbers in zip(*(_numbers(row) for row in group), strict=True)
    ]
    names = {row.name for row in group}
    if len(names) == matching[pattern]:
        shown = [str(numbers[0]) if len(numbers) == 1 else "*" for numbers in places]
    elif prod(len(numbers) for numbers in places) == len(names):
        shown = [_ranges(numbers) for numbers in places]
    else:
        return f"{first} and {len(names) - 1} like it"

    rest = iter(shown)
    return _NUMBER.sub(lambda _: next(rest), first)


def _numbers(row: TensorRow) -> list[int]:
    return [int(number) for number in _NUMBER.findall(row.name)]


def _ranges(numbers: Sequence[int]) -> str:
    """0, 1, 2, 5 -> "0-2,5"; 1, 3, 5, 7 -> "1,3,..,7". `numbers` ascend."""
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) > 3 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]},{numbers[1]},..,{numbers[-1]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
