"""Stages against exhaustive search and against a simulation, pass by pass."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.cost.stages import Cut, Layer, Pass, Schedule, cut_chain, orders, run_schedule
from autopar.errors import InvalidOption, NoFeasiblePlan

NUMBERS = st.integers(1, 5)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    stages = draw(NUMBERS)
    interleave = draw(st.integers(1, 3))
    if interleave > 1:
        return Schedule("interleaved", stages, stages * draw(st.integers(1, 3)), interleave)
    return Schedule(draw(st.sampled_from(["gpipe", "1f1b"])), stages, draw(st.integers(1, 8)))


@given(schedules())
def test_every_pass_runs_once(schedule: Schedule) -> None:
    every = {
        Pass(is_forward, n, chunk)
        for is_forward in (True, False)
        for n in range(schedule.micro_batches)
        for chunk in range(schedule.interleave)
    }
    for order in orders(schedule):
        assert len(order) == len(every)
        assert set(order) == every


@given(schedules(), st.integers(1, 4), st.integers(1, 4))
def test_equal_stages_wait_as_long_as_the_formula_says(
    schedule: Schedule, forward: int, backward: int
) -> None:
    forward_s = forward * schedule.interleave
    backward_s = backward * schedule.interleave
    count = schedule.stages
    found = run_schedule(schedule, [forward_s] * count, [backward_s] * count)
    share = schedule.bubble_share
    assert found.waits_s == pytest.approx([share * found.time_s] * count)
    assert found.time_s == pytest.approx(
        schedule.micro_batches * (forward_s + backward_s) / (1 - share)
    )


@given(schedules())
def test_activations_are_held_as_the_formula_says(schedule: Schedule) -> None:
    count = schedule.stages
    held = run_schedule(schedule, [1.0] * count, [2.0] * count).held
    assert held == tuple(map(schedule.in_flight, range(count)))


@given(schedules(), st.data())
def test_no_schedule_beats_the_busiest_stage(schedule: Schedule, data: st.DataObject) -> None:
    """Nor does it gain by slower links."""
    times = st.lists(st.integers(1, 9), min_size=schedule.stages, max_size=schedule.stages)
    forward = data.draw(times)
    backward = data.draw(times)
    transfer = data.draw(st.integers(0, 3))
    found = run_schedule(schedule, forward, backward, transfer)
    busiest = max(map(sum, zip(forward, backward, strict=True)))
    rounding = 1e-9
    assert found.time_s >= schedule.micro_batches * busiest - rounding
    assert found.time_s >= run_schedule(schedule, forward, backward).time_s - rounding


def test_one_micro_batch_passes_through_all_stages_and_back() -> None:
    found = run_schedule(Schedule("1f1b", 3, 1), [1, 2, 3], [4, 5, 6], 10)
    assert found.time_s == 1 + 2 + 3 + 4 + 5 + 6 + 4 * 10
    assert found.waits_s == (56, 54, 52)


def test_gpipe_of_unequal_stages_is_two_flow_shops() -> None:
    """sum + (m - 1) max, forward and backward: Johnson 1954, for jobs that are all alike."""
    found = run_schedule(Schedule("gpipe", 3, 5), [1, 4, 2], [3, 5, 1])
    assert found.time_s == (7 + 4 * 4) + (9 + 4 * 5)


# Chains ---------------------------------------------------------------------------------------------------------------

LAYERS = st.lists(
    st.builds(
        Layer, *[st.integers(0, 9)] * 2, st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)
    ),
    min_size=1,
    max_size=7,
)


def every_cut(count: int, stages: int) -> Iterator[tuple[int, ...]]:
    for starts in combinations(range(1, count), stages - 1):
        yield (0, *starts)


def by_hand(
    layers: list[Layer], schedule: Schedule, starts: tuple[int, ...], speed: float
) -> tuple[float, list[int]]:
    """The time and the peaks of one cut, as the docstring of `cut_chain` has them."""
    ends = (*starts[1:], len(layers))
    times: list[float] = []
    peaks: list[int] = []
    for n, (i, j) in enumerate(zip(starts, ends, strict=True)):
        sends = 2 * layers[j - 1].output_bytes / speed if j < len(layers) else 0
        times.append(sum(x.forward_s + x.backward_s for x in layers[i:j]) + sends)
        held = schedule.in_flight(n)
        peaks.append(sum(x.state_bytes + held * x.kept_bytes for x in layers[i:j]))
    return sum(times) + (schedule.micro_batches - 1) * max(times), peaks


@given(LAYERS, st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 4), st.integers(1, 6), st.data())
def test_a_cut_is_the_best_of_all(
    layers: list[Layer], kind: str, stages: int, micro_batches: int, data: st.DataObject
) -> None:
    schedule = Schedule(kind, min(stages, len(layers)), micro_batches)  # pyright: ignore[reportArgumentType]
    limit = data.draw(st.one_of(st.just(inf), st.integers(0, 60)))
    speed = data.draw(st.sampled_from([0.5, 2.0, inf]))
    cuts = [
        by_hand(layers, schedule, starts, speed)
        for starts in every_cut(len(layers), schedule.stages)
    ]
    allowed = [time for time, peaks in cuts if max(peaks) <= limit]
    options = {"bytes_per_s": speed, "memory_limit_bytes": limit}
    if not allowed:
        with pytest.raises(NoFeasiblePlan, match="within"):
            cut_chain(layers, schedule, **options)
        return

    found = cut_chain(layers, schedule, **options)
    time, peaks = by_hand(layers, schedule, found.starts, speed)
    assert found == Cut(found.starts, pytest.approx(time), tuple(peaks))
    assert found.time_s == pytest.approx(min(allowed))
    assert max(peaks) <= limit


def test_a_hundred_layers_are_cut_evenly() -> None:
    found = cut_chain([Layer(1.0, 2.0)] * 96, Schedule("1f1b", 8, 32))
    assert found.starts == tuple(range(0, 96, 12))
    assert found.time_s == pytest.approx((32 + 7) * 36)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Schedule("gpipe", 0, 4),
        lambda: Schedule("1f1b", 2, 4, 2),
        lambda: Schedule("interleaved", 4, 6, 2),
        lambda: cut_chain([Layer(1, 1)], Schedule("gpipe", 2, 2)),
    ],
)
def test_what_is_no_schedule_is_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(InvalidOption, match=r"schedule"):
        wrong()
