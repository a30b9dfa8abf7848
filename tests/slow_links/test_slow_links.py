"""Two hosts as network namespaces, joined by a slow link: what the model says there is what is measured.

Small: one rate, small messages, one perceptron. `python -m benchmarks.slow_links` is the whole.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks import hosts, slow_links

RATE = 50e6  # slow enough for what else the machine does to matter little


@cache
def why_not() -> str:
    return hosts.why_not()


@pytest.fixture(autouse=True)
def _linked_hosts_can_be_made() -> None:
    if why_not():
        pytest.skip(why_not())


def left_over() -> list[str]:
    return [path.name for path in hosts.FILES.glob(f"{hosts.PREFIX}{os.getpid()}-*")]


@pytest.mark.netns
def test_a_plan_for_the_links_is_faster_there(tmp_path: Path) -> None:
    found = slow_links.measure(RATE, ["small mlp"], 5, tmp_path, sizes_mib=(1,))
    (row,) = found.reductions
    assert row.levels_model_s < row.flat_model_s
    assert row.levels_s < row.flat_s
    assert row.flat_s == pytest.approx(row.flat_model_s, rel=0.5)
    these, equal = found.steps
    assert these.predicted_s < equal.predicted_s
    assert these.measured_s < equal.measured_s
    np.testing.assert_allclose(these.losses, equal.losses, rtol=1e-4)
    assert these.losses[-1] < these.losses[0]
    assert left_over() == []


def fail_in_namespaces() -> None:
    with hosts.linked_hosts(RATE):
        assert len(left_over()) == 2
        raise RuntimeError("on purpose")


@pytest.mark.netns
def test_namespaces_go_when_work_fails() -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        fail_in_namespaces()
    assert left_over() == []
    assert hosts.why_not() == ""


@pytest.mark.netns
def test_a_worker_that_fails_is_quoted() -> None:
    with (
        hosts.linked_hosts(None) as pair,
        pytest.raises(hosts.HostsError, match="No module named benchmarks"),
    ):
        hosts.run_everywhere(pair, "benchmarks.none", {}, local_devices=1, timeout_s=60)
    assert left_over() == []
