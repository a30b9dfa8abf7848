"""Columns against the placements one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autopar.core.columns import Columns
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement

MESH = DeviceMesh.of({"x": 2, "y": 3, "z": 4})
SHAPE = (24, 12)
CHOICES = [
    Placement((first, second), unreduced)
    for first in ((), ("x",), ("y", "x"), ("x", "y"))
    for second in ((), ("z",))
    for unreduced in ((), ("x",), ("z",))
    if not set(unreduced) & {*first, *second}
]


@given(st.lists(st.lists(st.sampled_from(CHOICES), min_size=1, max_size=8), min_size=1, max_size=5))
def test_a_column_says_what_its_placements_say(lists: list[list[Placement]]) -> None:
    columns = Columns(MESH)
    made = [columns.of(tuple(placements)) for placements in lists]
    for placements, column in zip(lists, made, strict=True):
        assert [column.distinct[n] for n in column.index] == placements
        assert list(column.distinct) == list(dict.fromkeys(placements))
        sizes = [4 * placement.local_size(SHAPE, MESH) for placement in placements]
        assert column.local_bytes(4 * 24 * 12).tolist() == sizes
        assert len(column) == len(placements)
    for first, mine in zip(lists, made, strict=True):
        for second, other in zip(lists, made, strict=True):
            assert (mine is other) == (first == second)
            assert (mine.distinct is other.distinct) == (
                list(dict.fromkeys(first)) == list(dict.fromkeys(second))
            )
            equal = [[a == b for b in second] for a in first]
            assert (mine.numbers[:, None] == other.numbers).tolist() == equal
