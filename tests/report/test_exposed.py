"""What collectives make the step longer by, as reports and explanations show it."""

from __future__ import annotations

import pytest

from autopar.report.explain import explain
from autopar.report.render import text
from autopar.report.summary import Report
from tests.report import make
from tests.report.test_errors import plan


def with_exposed(*seconds: float | None) -> Report:
    rows = make.collectives(1)
    return make.report(
        1,
        collectives=tuple(make.replace(r, exposed_s=s) for r, s in zip(rows, seconds, strict=True)),
    )


@pytest.mark.usefixtures("wide")
def test_reports_and_explanations_show_what_is_exposed() -> None:
    shown = text(with_exposed(1e-4, 5e-5, 0.0), details=("collectives",))
    (all_of_them,) = (
        line.split() for line in shown.splitlines() if line.split()[:2] == ["all", "3"]
    )
    assert all_of_them[-4:] == ["550", "us", "150", "us"]
    gather = explain(with_exposed(1e-4, 5e-5, 2e-5), "params['layers'][0]['w1']")
    assert "20 us" in next(line for line in gather.splitlines() if "all_gather" in line)


def test_what_is_not_known_is_not_shown() -> None:
    def row(*seconds: float | None) -> str:
        lines = text(with_exposed(*seconds)).splitlines()
        return next(line for line in lines if line.strip().startswith("forward"))

    assert row(1e-4, 5e-5, 0.0).endswith("100 us")
    assert row(None, 5e-5, 0.0).endswith("-")


@pytest.mark.parametrize("overlaps", [True, False])
def test_what_a_plan_hides_is_not_exposed(overlaps: bool) -> None:
    made = plan("data_parallel", overlaps)
    exposed = sum(row.exposed_s or 0.0 for row in made.collectives)
    if overlaps:
        assert 0 < exposed <= made.communication_time_s * (1 + 1e-9)
        assert made.step_time_s < made.serial_time_s
    else:
        assert exposed == pytest.approx(made.communication_time_s)
        assert made.step_time_s == pytest.approx(made.serial_time_s)
