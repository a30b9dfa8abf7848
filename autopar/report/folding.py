"""Folding: groups of tensors whose paths differ in one key, such as a parameter and its two moments, as one row."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from autopar.report.groups import TensorGroup
from autopar.report.summary import TensorRow

_PART = re.compile(r"\[[^\]]*\]|\.?[^.\[]+")
_SHOWN = 4


@dataclass(frozen=True)
class FoldedRow:
    """Tensors of one shape, type and placement. `label` stands for their paths, with `|` between keys."""

    label: str
    members: tuple[TensorRow, ...]


@dataclass(frozen=True)
class _Folded:
    parts: tuple[tuple[str, ...], ...]
    """For every key of the path those that it stands for."""
    members: tuple[TensorRow, ...]


def fold(groups: Sequence[TensorGroup]) -> tuple[FoldedRow, ...]:
    """`groups` with those as one that differ in a key, key by key, where they are of one shape, type and placement.

    What differs in most is folded first. Groups are in the order of their first members.
    """
    rows = [
        _Folded(tuple((part,) for part in _PART.findall(group.label)), group.members)
        for group in groups
    ]
    while True:
        positions = range(max((len(row.parts) for row in rows), default=0))
        best = min(([*_at(rows, n)] for n in positions), key=len, default=rows)
        if len(best) >= len(rows):
            return tuple(FoldedRow("".join(map(_shown, row.parts)), row.members) for row in rows)
        rows = best


def _at(rows: Sequence[_Folded], position: int) -> list[_Folded]:
    """`rows` with those as one that differ in the key at a position only."""
    found: dict[object, list[_Folded]] = defaultdict(list)
    for row in rows:
        first = row.members[0]
        rest = (*row.parts[:position], *row.parts[position + 1 :])
        alike = len(row.parts), rest, first.shape, first.dtype, first.placement
        found[alike if position < len(row.parts) else row.parts].append(row)
    return [_joined(some, position) for some in found.values()]


def _joined(rows: Sequence[_Folded], position: int) -> _Folded:
    if len(rows) == 1:
        return rows[0]
    keys = tuple(dict.fromkeys(key for row in rows for key in row.parts[position]))
    parts = list(rows[0].parts)
    parts[position] = keys
    return _Folded(tuple(parts), tuple(member for row in rows for member in row.members))


def _shown(keys: Sequence[str]) -> str:
    """What stands for several keys ("[k|q|v]"), the first few of many."""
    if len(keys) == 1:
        return keys[0]
    if not all(key.startswith("[") for key in keys):
        return f"({'|'.join(_few(keys))})"
    names = [key[1:-1].strip("'") for key in keys]
    return f"[{'|'.join(_few(names))}]"


def _few(keys: Sequence[str]) -> list[str]:
    if len(keys) <= _SHOWN:
        return [*keys]
    return [*keys[: _SHOWN - 1], f"{len(keys) - _SHOWN + 1} more"]
