"""The accuracy benchmark: its statistics against counting by hand, its plans, and what it predicts for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import end_to_end, models
from benchmarks.accuracy import predicted
from benchmarks.accuracy_figures import (
    agreement,
    clear_tau,
    figures,
    overall,
    peak_figures,
    round_factors,
)
from benchmarks.accuracy_plans import drawn_plans
from benchmarks.accuracy_steps import TIMED_STEPS, interleaved
from cost_models import load_cluster, replace_link

TIMES = st.lists(st.floats(0.01, 10.0), min_size=3, max_size=12, unique=True)


def counted_tau(a: list[float], b: list[float]) -> float:
    """Pairs in the same order less pairs in the other, over all pairs."""
    pairs = list(combinations(range(len(a)), 2))
    same = sum((a[i] < a[j]) == (b[i] < b[j]) for i, j in pairs)
    return (2 * same - len(pairs)) / len(pairs)


@settings(deadline=None)
@given(st.data())
def test_figures_are_those_counted_by_hand(data: st.DataObject) -> None:
    measured = data.draw(TIMES)
    guess = data.draw(st.permutations(measured))
    found = figures(guess, measured)
    errors = [abs(g - m) / m for g, m in zip(guess, measured, strict=True)]
    assert found.kendall_tau == pytest.approx(counted_tau(guess, measured))
    assert found.mean_error == pytest.approx(sum(errors) / len(errors))
    assert found.max_error == pytest.approx(max(errors))
    assert found.regret == pytest.approx(measured[guess.index(min(guess))] / min(measured) - 1)


def test_perfect_predictions_have_perfect_figures() -> None:
    found = overall([([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), ([5.0, 4.0], [5.0, 4.0])])
    assert (found.plans, found.mean_error, found.kendall_tau, found.regret) == (5, 0.0, 1.0, 0.0)
    assert agreement([[1.0, 1.1, 1.0], [2.0, 2.1, 2.0]]) == pytest.approx(1.0)


@settings(deadline=None)
@given(st.data())
def test_clear_pairs_are_those_that_both_halves_order_alike(data: st.DataObject) -> None:
    even = data.draw(TIMES)
    odd, guess = data.draw(st.permutations(even)), data.draw(st.permutations(even))
    pairs = list(combinations(range(len(even)), 2))
    clear = [(i, j) for i, j in pairs if (even[i] < even[j]) == (odd[i] < odd[j])]
    right = sum((guess[i] < guess[j]) == (even[i] < even[j]) for i, j in clear)
    found = clear_tau(guess, list(zip(even, odd, strict=True)))
    assert (
        math.isnan(found)
        if not clear
        else found == pytest.approx((2 * right - len(clear)) / len(clear))
    )


def test_a_host_that_drifts_is_told_from_plans_that_differ() -> None:
    """Rounds of 1, 1.5 and 0.8 times the usual speed, in one of which one plan is slow by itself."""
    factors, plans = [1.0, 1.5, 0.8, 1.0, 1.0], [1.0, 1.1, 1.2, 1.3]
    times = [[plan * factor for factor in factors] for plan in plans]
    times[2][3] *= 4
    found = round_factors(times)
    assert found == pytest.approx(factors)
    straightened = [
        [time_s / factor for time_s, factor in zip(mine, found, strict=True)] for mine in times
    ]
    assert straightened[0] == pytest.approx([1.0] * 5)
    assert straightened[2] == pytest.approx([1.2, 1.2, 1.2, 4.8, 1.2])


def test_a_turn_is_a_step_that_fills_the_caches_and_the_mean_of_those_after_it() -> None:
    """Of steps that take one second more each time: two to warm up, then four in each round."""
    steps: list[Any] = [Counting(), Counting(), Counting()]
    assert TIMED_STEPS == 3
    assert interleaved(steps, 3) == [[5.0, 9.0, 13.0]] * 3


@dataclass
class Counting:
    """Stands for a plan's step; it takes as many seconds as it was asked times."""

    count: int = 0

    def run(self) -> float:
        self.count += 1
        return float(self.count)


def test_models_are_averaged_and_not_thrown_together() -> None:
    """One is ordered right, one the wrong way round; together their times would look ordered."""
    found = overall([([1.0, 2.0], [1.0, 2.0]), ([200.0, 100.0], [100.0, 200.0])])
    assert found.kendall_tau == pytest.approx(0.0)
    assert found.regret == pytest.approx(0.5)


def test_a_peak_that_is_under_is_told_apart() -> None:
    found = peak_figures([110, 90], [100, 100])
    assert (found.mean_error, found.worst_under) == (pytest.approx(0.1), pytest.approx(0.1))
    assert peak_figures([110], [100]).worst_under == 0.0


def test_too_few_times_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two"):
        figures([1.0], [1.0])


def test_plans_differ_and_are_predicted_as_they_were_priced() -> None:
    cluster, model = load_cluster("cpu8"), models.mlp((64, 128, 64), batch=64)
    drawn = drawn_plans(model, cluster, 8)
    assert len({str(d.plan.program()) for d in drawn}) == 8
    assert {d.kind for d in drawn} == {
        "planned",
        "data parallel",
        "tensor parallel",
        "pinned",
        "perturbed",
    }
    for d in drawn:
        graph, program = d.plan.bound.planned.graph, d.plan.program()
        found = predicted(graph, program, cluster)
        if d.kind != "perturbed":
            assert found.serial_time_s == pytest.approx(d.plan.serial_time_s)
        slower = replace_link(cluster, "device", latency_s=1.0)
        assert predicted(graph, program, slower).communication_time_s >= len(program.collectives)


@pytest.mark.parametrize(
    ("kind", "name"), [("cpu AuthenticAMD 26", "cpu8-zen5"), ("cpu NoSuchVendor 1", "cpu8")]
)
def test_what_ships_for_the_processor_is_taken(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_to_end, "processor_kind", lambda: kind)
    assert end_to_end.shipped_cluster().name == name
