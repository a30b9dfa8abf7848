"""streams: two streams that slow each other, against a slow simulation that asks at every moment what may run."""

from __future__ import annotations

from fractions import Fraction
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import Item, Overlap, simulate

FREE = Overlap(1.0, 1.0)
STREAMS = ("computation", "communication", "both")


def exact(a: int, b: int) -> Overlap:
    """Slowdowns of a and b quarters, as fractions: no rounding anywhere."""
    made: Any = Overlap(1.0, 1.0)
    object.__setattr__(made, "computing_slowdown", Fraction(a, 4))
    object.__setattr__(made, "communicating_slowdown", Fraction(b, 4))
    return made


@st.composite
def items_of(draw: st.DrawFn) -> list[Item]:
    """Random items with whole times, each after some earlier one of the other stream, or none."""
    made: list[Item] = []
    for n in range(draw(st.integers(0, 9))):
        stream = draw(st.sampled_from((*STREAMS[:2], *STREAMS)))
        others = [m for m in range(n) if made[m].stream != stream]
        after = draw(st.sampled_from([-1, *others])) if stream != "both" else -1
        time: Any = Fraction(draw(st.integers(0, 6)))
        made.append(Item(stream, time, after))
    return made


overlaps = st.builds(exact, st.integers(4, 10), st.integers(4, 10))


def streams_of(item: Item) -> set[str]:
    return set(STREAMS[:2]) if item.stream == "both" else {item.stream}


def waits_for(items: list[Item], n: int) -> set[int]:
    """All that has to have ended before item `n` starts: earlier ones of its streams, and what it is after."""
    before = {m for m in range(n) if streams_of(items[m]) & streams_of(items[n])}
    return before | ({items[n].after} if items[n].after >= 0 else set())


def slow_makespan(items: list[Item], overlap: Overlap) -> Any:
    """On from one end to the next: whatever waits for nothing runs, slowed if two run."""
    left = {n: item.time_s for n, item in enumerate(items)}
    now: Any = Fraction(0)
    while left:
        running = [n for n in left if not waits_for(items, n) & left.keys()]
        slow = {
            n: 1
            if len(running) == 1
            else overlap.computing_slowdown
            if items[n].stream == "computation"
            else overlap.communicating_slowdown
            for n in running
        }
        step = min(left[n] * slow[n] for n in running)
        now += step
        for n in running:
            left[n] -= step / slow[n]
            if left[n] == 0:
                del left[n]
    return now


def critical_path(items: list[Item]) -> Any:
    ends: list[Any] = []
    for n, item in enumerate(items):
        ends.append(item.time_s + max((ends[m] for m in waits_for(items, n)), default=0))
    return max(ends, default=0)


@settings(max_examples=400, deadline=None)
@given(items_of(), overlaps)
def test_the_makespan_is_that_of_a_slow_simulation(items: list[Item], overlap: Overlap) -> None:
    found = simulate(items, overlap).makespan_s
    total = sum(item.time_s for item in items)
    own = [sum(i.time_s for i in items if stream in streams_of(i)) for stream in STREAMS[:2]]
    assert found == (slow_makespan(items, overlap) if overlap.pays else total)
    assert max(*own, critical_path(items)) <= found <= total
    assert simulate(items, None).makespan_s == total


@settings(max_examples=400, deadline=None)
@given(items_of(), overlaps)
def test_what_hides_takes_no_less_than_it_slows(items: list[Item], overlap: Overlap) -> None:
    """The bound that `search.overlapped` rests on: computing + weight * communicating."""
    computing = sum(item.time_s for item in items if item.stream != "communication")
    communicating = sum(item.time_s for item in items if item.stream == "communication")
    least: Any = overlap.least_weight
    assert simulate(items, overlap).makespan_s >= computing + least * communicating


@settings(max_examples=400, deadline=None)
@given(items_of(), overlaps, st.fractions(Fraction(1, 100), 100))
def test_no_step_takes_less_than_its_share(
    items: list[Item], overlap: Overlap, weight: Fraction
) -> None:
    computing = sum(item.time_s for item in items if item.stream != "communication")
    communicating = sum(item.time_s for item in items if item.stream == "communication")
    known: Any = weight
    total = computing + known * communicating
    assert simulate(items, overlap).makespan_s >= overlap.share_at(known) * total * (1 - 1e-12)


@settings(max_examples=100, deadline=None)
@given(overlaps)
def test_most_is_proven_at_the_least_and_the_most_weight(overlap: Overlap) -> None:
    least, most = overlap.least_weight, overlap.most_weight
    assert least <= most
    assert overlap.share_at(least) == pytest.approx(1)
    assert overlap.share_at(least / 2) == 1
    if most < inf:
        assert overlap.share_at(most) == pytest.approx(1 / most)
        assert overlap.share_at(2 * most) == pytest.approx(1 / (2 * most))
    for part in (0.25, 0.5, 0.75):  # between them some of both counts
        weight = least + part * (min(most, 100) - least)
        assert overlap.share_at(weight) <= min(1, 1 / weight) * (1 + 1e-12)


@settings(max_examples=400, deadline=None)
@given(items_of().filter(bool), overlaps, st.data())
def test_no_item_that_takes_longer_makes_the_makespan_shorter(
    items: list[Item], overlap: Overlap, data: st.DataObject
) -> None:
    n = data.draw(st.integers(0, len(items) - 1))
    more: Any = items[n].time_s + Fraction(data.draw(st.integers(1, 9)), 2)
    longer = [*items[:n], items[n]._replace(time_s=more), *items[n + 1 :]]
    assert simulate(longer, overlap).makespan_s >= simulate(items, overlap).makespan_s


@settings(max_examples=200, deadline=None)
@given(items_of(), st.integers(4, 7), st.integers(4, 7), st.integers(1, 3))
def test_larger_slowdowns_make_no_step_shorter(
    items: list[Item], a: int, b: int, more: int
) -> None:
    found = simulate(items, exact(a, b)).makespan_s
    assert simulate(items, exact(a + more, b)).makespan_s >= found
    assert simulate(items, exact(a, b + more)).makespan_s >= found


@settings(max_examples=300, deadline=None)
@given(items_of(), overlaps)
def test_nothing_starts_before_what_it_waits_for(items: list[Item], overlap: Overlap) -> None:
    found = simulate(items, overlap)
    for n, item in enumerate(items):
        assert found.starts_s[n] >= max((found.ends_s[m] for m in waits_for(items, n)), default=0)
        assert found.ends_s[n] - found.starts_s[n] >= item.time_s
    assert sum(found.weights_s) == found.makespan_s
    assert max(found.ends_s, default=0) == found.makespan_s


@settings(max_examples=300, deadline=None)
@given(items_of().filter(bool), overlaps, st.data())
def test_weights_are_derivatives(items: list[Item], overlap: Overlap, data: st.DataObject) -> None:
    """Where nothing ends at the same time as something else: times that are far from multiples of each other."""
    small = Fraction(1, 10**9)
    items = [
        item._replace(time_s=item.time_s + Fraction(7 * n + 3, 1009))
        for n, item in enumerate(items)
    ]
    n = data.draw(st.integers(0, len(items) - 1))
    grown = [*items[:n], items[n]._replace(time_s=items[n].time_s * (1 + small)), *items[n + 1 :]]
    shrunk = [*items[:n], items[n]._replace(time_s=items[n].time_s * (1 - small)), *items[n + 1 :]]
    now, more, less = (simulate(some, overlap) for some in (items, grown, shrunk))
    up, down = (
        (more.makespan_s - now.makespan_s) / small,
        (now.makespan_s - less.makespan_s) / small,
    )
    if up == down:
        assert now.weights_s[n] == up
    else:
        assert min(up, down) <= now.weights_s[n] <= max(up, down)


def test_slowed_is_the_derivative_by_the_slowdowns() -> None:
    items = [Item("communication", 4.0), Item("computation", 9.0), Item("communication", 1.0, 1)]
    step, more = 1e-6, Overlap(1.2, 1.5)
    found = simulate(items, more)
    for which, slower in enumerate(
        (Overlap(1.2 * (1 + step), 1.5), Overlap(1.2, 1.5 * (1 + step)))
    ):
        growth = (simulate(items, slower).makespan_s - found.makespan_s) / step
        assert found.slowed_s[which] == pytest.approx(growth, abs=1e-4)


def test_by_hand() -> None:
    """10 s of computing beside 4 s of communicating: 4 x 1.5 = 6 s both, in which 5 s are computed; 5 s are left."""
    found = simulate([Item("communication", 4.0), Item("computation", 10.0)], Overlap(1.2, 1.5))
    assert found.makespan_s == pytest.approx(11.0)
    assert found.ends_s == pytest.approx((6.0, 11.0))
    assert found.weights_s == pytest.approx((4 * (1.5 - 1.5 / 1.2), 10.0))
    barrier = [Item("communication", 1.0), Item("both", 2.0), Item("computation", 1.0)]
    assert simulate(barrier, FREE).makespan_s == 4.0


def test_overlap_that_does_not_pay_is_left() -> None:
    items = [Item("communication", 3.0), Item("computation", 5.0)]
    assert not Overlap(2.0, 2.0).pays
    assert (
        simulate(items, Overlap(2.0, 2.0)).makespan_s
        == simulate(items, Overlap(1e9, 1e9)).makespan_s
        == 8.0
    )


def test_bad_items_and_slowdowns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"item 0 takes 1.0 s after item 0"):
        simulate([Item("computation", 1.0, 0)], FREE)
    with pytest.raises(ValueError, match=r"item 0 takes -1.0 s"):
        simulate([Item("computation", -1.0)], FREE)
    with pytest.raises(
        ValueError, match=r"communicating_slowdown must be finite and >= 1, got 0.5"
    ):
        Overlap(1.0, 0.5)


@given(st.integers(0, 6), st.integers(0, 6), overlaps)
def test_two_that_begin_together_take_what_the_simulation_says(
    computing: int, communicating: int, overlap: Overlap
) -> None:
    both: Any = [Fraction(computing), Fraction(communicating)]
    items = [Item("computation", both[0]), Item("communication", both[1])]
    assert overlap.together_s(*both) == simulate(items, overlap).makespan_s
