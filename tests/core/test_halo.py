"""Halos against the places of every window, counted one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autopar.core.halo import MOST_PIECES, Halo, Window, halo
from autopar.core.strategy import MIRROR, NEXT, PREVIOUS, Exchange, Hop

windows = st.builds(
    Window,
    st.sampled_from([4, 8, 12, 16]),
    st.sampled_from([4, 8, 12]),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(-3, 5),
    st.integers(1, 3),
)


def places(window: Window, j: int) -> list[int]:
    return [j * window.stride + t * window.dilation - window.low for t in range(window.width)]


def elements(window: Window, j: int) -> set[int]:
    """The elements under window j."""
    return {
        p // window.base
        for p in places(window, j)
        if p % window.base == 0 and 0 <= p // window.base < window.size
    }


def reachable(found: Halo, size: int, parts: int, position: int) -> set[int]:
    """The elements of all pieces that come from a device that is there."""
    shard = size // parts
    there = [
        (position + piece.distance, piece)
        for piece in found.pieces
        if 0 <= position + piece.distance < parts
    ]
    return {device * shard + n for device, piece in there for n in range(piece.begin, piece.end)}


@given(windows, st.sampled_from([2, 4]))
def test_a_run_holds_the_elements_under_its_windows_where_windows_look_for_them(
    window: Window, parts: int
) -> None:
    found = window.halo(parts)
    if found is None:
        return
    local = window.count // parts
    low, high = window.padding(parts)
    assert low >= 0
    assert high >= 0
    for position in range(parts):
        begin = found.first + position * found.stride
        run = range(begin, begin + found.length)
        assert (
            position * local * window.stride - window.low
        ) == begin * window.base - low  # the first place
        for j in range(position * local, (position + 1) * local):
            assert elements(window, j) <= set(run) & reachable(found, window.size, parts, position)
        last = places(window, (position + 1) * local - 1)[-1]
        assert last == run[-1] * window.base + high


@given(windows, st.sampled_from([2, 4]))
def test_there_is_none_exactly_where_runs_that_wander_need_more_than_a_neighbour(
    window: Window, parts: int
) -> None:
    shard, local = window.size // parts, window.count // parts
    if local * window.stride % window.base:  # devices would see their elements at different places
        assert window.halo(parts) is None
        return
    if local * window.stride // window.base == shard:
        return
    needs = [0]
    for position in range(parts):
        spans = [places(window, j) for j in range(position * local, (position + 1) * local)]
        run = range(-(-spans[0][0] // window.base), spans[-1][-1] // window.base + 1)
        inside = [i for i in run if 0 <= i < window.size]
        needs += (
            [position * shard - min(inside), max(inside) - (position + 1) * shard + 1]
            if inside
            else []
        )
        if not run:  # windows on nothing but gaps between elements
            needs.append(shard + 1)
    assert (window.halo(parts) is None) == (max(needs) > shard)


@given(windows, st.sampled_from([2, 4]))
def test_sources_are_the_windows_that_hold_an_element_of_the_shard(
    window: Window, parts: int
) -> None:
    sources, under = window.sources(parts), window.under_sources(parts)
    if sources is None or under is None:
        return
    shard = window.size // parts
    for position in range(parts):
        mine = set(range(position * shard, (position + 1) * shard))
        begin = sources.first + position * sources.stride
        run = set(range(begin, begin + sources.length))
        for j in range(window.count):
            if elements(window, j) & mine:
                assert j in run & reachable(sources, window.count, parts, position)
                assert elements(window, j) <= reachable(under, window.size, parts, position)


@given(
    st.integers(1, 5).map(lambda n: 4 * n),
    st.integers(-8, 8),
    st.integers(0, 9),
    st.integers(1, 20),
)
def test_the_run_lies_in_what_is_made_of_the_shard(
    size: int, first: int, stride: int, length: int
) -> None:
    found = halo(size, 4, first, stride, length)
    if found is None:
        return
    shard = size // 4
    for position in range(4):
        devices = [(position + piece.distance) * shard for piece in found.pieces]
        places = [
            d + n for d, p in zip(devices, found.pieces, strict=True) for n in range(p.begin, p.end)
        ]
        assert places == [*range(places[0], places[0] + len(places))]
        start = found.start + position * found.shift
        assert 0 <= start <= found.before + len(places) + found.after - found.length
        assert places[0] - found.before + start == first + position * stride
    outside = first < 0 or first + 3 * stride + length > size
    assert found.outside == outside


@given(st.integers(1, 5), st.integers(-60, 60), st.integers(1, 20))
def test_a_run_that_moves_with_its_shard_may_be_of_any_device(
    shard: int, first: int, length: int
) -> None:
    """Every element that is there comes from the device that has it, once; nothing is sent that nobody wants."""
    size, parts = 4 * shard, 4
    found = halo(size, parts, first, shard, length)
    wanted = {
        position: range(first + position * shard, first + position * shard + length)
        for position in range(parts)
    }
    inside = {position: set(run) & set(range(size)) for position, run in wanted.items()}
    if found is None:
        distances = {
            element // shard - position for position, run in inside.items() for element in run
        }
        assert not distances or len(distances) > MOST_PIECES
        return
    assert {
        position: reachable(found, size, parts, position) for position in range(parts)
    } == inside
    assert (
        found.before + sum(piece.end - piece.begin for piece in found.pieces) + found.after
        == length
    )


def test_pairs_of_permutes() -> None:
    assert NEXT.pairs(3) == [(0, 1), (1, 2)]
    assert PREVIOUS.pairs(3) == [(1, 0), (2, 1)]
    assert MIRROR.pairs(3) == [(0, 2), (1, 1), (2, 0)]
    assert Hop(2).pairs(4) == [(0, 2), (1, 3)]
    assert Hop(-1, "ring").pairs(3) == [(0, 2), (1, 0), (2, 1)]
    assert [str(hop) for hop in (NEXT, MIRROR, Hop(-2), Hop(3, "ring"))] == [
        "next",
        "mirror",
        "-2",
        "+3 in a ring",
    ]


def test_an_exchange_is_a_permute_with_a_hop_or_an_all_gather_without() -> None:
    for kind, hop in (
        ("permute", None),
        ("all_gather", NEXT),
        ("all_to_all", NEXT),
        ("slice", None),
    ):
        try:
            Exchange(kind, ("x",), 4, 0, hop)
        except ValueError:
            continue
        raise AssertionError(f"{kind} to {hop} was taken")
