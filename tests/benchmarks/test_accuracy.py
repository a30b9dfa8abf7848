"""The accuracy benchmark: its statistics against counting by hand, its plans, and what it predicts for them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import models
from benchmarks.accuracy import predicted
from benchmarks.accuracy_figures import agreement, figures, overall, peak_figures
from benchmarks.accuracy_plans import drawn_plans
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
    assert {d.kind for d in drawn} == {"planned", "data parallel", "tensor parallel", "pinned", "perturbed"}
    for d in drawn:
        graph, program = d.plan.bound.planned.graph, d.plan.program()
        found = predicted(graph, program, cluster)
        if d.kind != "perturbed":
            assert found.serial_time_s == pytest.approx(d.plan.serial_time_s)
        slower = replace_link(cluster, "device", latency_s=1.0)
        assert predicted(graph, program, slower).communication_time_s >= len(program.collectives)
