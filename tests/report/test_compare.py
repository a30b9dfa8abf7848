"""compare: which of two plans is faster, and whether the model can tell."""

from __future__ import annotations

import pytest

from autopar.errors import AutoparError
from autopar.report.compare import compare, indistinct
from autopar.report.diff import diff
from autopar.report.errors import ErrorShare
from autopar.report.front import front_section
from autopar.report.summary import Report
from tests.report import make


def of(time_s: float, cluster: str = "8xh100", **shares: float) -> Report:
    errors = tuple(ErrorShare(source, error) for source, error in shares.items())
    return make.report(step_time_s=time_s, errors=errors, cluster=cluster)


def test_what_both_owe_to_the_same_cancels() -> None:
    found = compare(of(10e-3, peak=3e-3, links=1e-3), of(11e-3, peak=3e-3, links=1.3e-3))
    assert found.error_s == pytest.approx(0.3e-3)
    assert found.difference_s == pytest.approx(1e-3)
    assert found.is_told_apart
    assert found.sources == ("links",)
    assert (
        "1 ms apart, with a standard error of 300 us: this is faster, with a probability of >99.9 %"
        in str(found)
    )
    assert "other is faster" in str(compare(of(11e-3, links=1.3e-3), of(10e-3, links=1e-3)))


def test_what_differs_does_not_cancel() -> None:
    found = compare(of(10e-3, peak=3e-3), of(11e-3, links=4e-3))
    assert found.error_s == pytest.approx(5e-3)
    assert not found.is_told_apart
    assert found.confidence == pytest.approx(0.5793, abs=1e-4)
    assert str(found).endswith("(mostly of links, peak): within the model's error, measure both.")


def test_nothing_cancels_between_clusters() -> None:
    assert compare(of(1e-2, peak=3e-3), of(2e-2, "8xa100", peak=4e-3)).error_s == pytest.approx(
        5e-3
    )


def test_equal_plans_are_equal() -> None:
    assert str(compare(of(1e-2, peak=1e-3), of(1e-2, peak=1e-3))).endswith("as fast as each other.")
    surely = compare(of(1e-2, peak=1e-3), of(2e-2, peak=1e-3))
    assert (surely.confidence, surely.is_told_apart) == (1.0, True)


def test_unknown_errors_are_said() -> None:
    with pytest.raises(AutoparError, match="no errors are known"):
        compare(of(1e-2, peak=1e-3), of(1e-2))


def test_diff_and_front_say_what_to_measure() -> None:
    near, far = of(10.5e-3, peak=2e-3, links=1e-3), of(30e-3, peak=2e-3)
    here = of(10e-3, peak=2e-3)
    assert "Step time: this 10 ms, other 10.5 ms" in diff(here, near)
    assert "Step time:" not in diff(make.report(), near)
    assert indistinct((here, near, far)) == ((0, 1),)
    assert (
        "Step times of points 1 and 2 are within the model's error: measure these."
        in front_section([here, near, far]).note
    )
    assert "measure" not in front_section([here, far]).note
