"""Shards by bytes: every row on one server, no server far above the mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.errors import ServerFull
from autopar.parameter_server.sharding import Leaf, place

LEAVES = st.lists(
    st.builds(
        lambda rows, width, may_cut: ((rows, width), rows * width * 4, may_cut),
        st.integers(0, 50),
        st.integers(1, 40),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
).map(
    lambda drawn: [
        Leaf(f"w{n}", shape, "float32", size, may_cut)
        for n, (shape, size, may_cut) in enumerate(drawn)
    ]
)


@given(LEAVES, st.integers(1, 5))
def test_every_row_is_on_one_server_and_none_holds_much_more_than_the_mean(
    leaves: list[Leaf], servers: int
) -> None:
    placed = place(leaves, [None] * servers)
    rows = {leaf.name: [] for leaf in leaves}
    for shard in (shard for shards in placed for shard in shards):
        rows[shard.name].extend(range(shard.start, shard.stop))
    assert {name: sorted(found) for name, found in rows.items()} == {
        leaf.name: list(range(leaf.rows)) for leaf in leaves
    }

    row_bytes = {leaf.name: leaf.held_bytes / max(1, leaf.rows) for leaf in leaves}
    sizes = [[row_bytes[s.name] * (s.stop - s.start) for s in shards] for shards in placed]
    largest = max((size for some in sizes for size in some), default=0.0)
    mean = sum(map(sum, sizes)) / servers
    assert max(map(sum, sizes)) <= mean + largest + len(leaves)


def test_a_large_leaf_is_cut_and_one_that_may_not_be_is_not() -> None:
    cut, whole = (
        place([Leaf("w", (100, 4), "float32", 1600, may_cut)], [None, None])
        for may_cut in (True, False)
    )
    assert [sum(s.stop - s.start for s in shards) for shards in cut] == [50, 50]
    assert sorted(map(len, whole)) == [0, 1]


def test_room_decides_where_servers_are_small() -> None:
    leaves = [Leaf(f"w{n}", (), "float32", 40, False) for n in range(4)]
    placed = place(leaves, [50, None])
    assert list(map(len, placed)) == [1, 3]


def test_full_servers_are_named_with_what_they_hold() -> None:
    leaf = Leaf("table", (12, 4), "float32", 400)
    with pytest.raises(ServerFull, match=r"table\[\d+:\d+\] takes 100 B") as found:
        place([leaf], [150, 150])
    assert "server 0 holds 100 B of 150 B, server 1 holds 100 B of 150 B" in str(found.value)
    assert "All parameters take 400 B" in str(found.value)
