"""The planning benchmark: its stages are those of the code, its models are of the sizes that their names say."""

from __future__ import annotations

import json
from functools import partial
from math import prod
from pathlib import Path
from time import perf_counter

import pytest

from benchmarks import shapes
from benchmarks.planning import CASES, STAGES, Case, main, measure
from cost_models import load_cluster

TINY = partial(shapes.gpt, width=32, heads=4, vocab=64, sequence=16, batch=8)
BILLIONS = {
    "llama-8B": 8.03,
    "llama-8B-unrolled": 8.03,
    "llama-70B": 70.6,
    "llama-405B": 406,
    "moe-671B": 671,
}


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("scanned", [False, True])
def test_every_stage_is_timed(scanned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case("tiny", partial(TINY, 2, scanned=scanned), (2, 4))
    row = measure(case, perf_counter)
    assert set(row.stages) == {*STAGES, "rest"}
    assert all(seconds > 0 for seconds in row.stages.values())
    assert sum(row.stages.values()) == pytest.approx(row.plan_s)
    assert row.gap == 0
    assert row.peak_memory_bytes >= row.imported_bytes > 0
    assert len(capsys.readouterr().out.splitlines()) >= len(STAGES)


@pytest.mark.slow  # compiles the solver's loops first
def test_it_runs_from_its_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "^gpt-2 64$", "--json", str(tmp_path / "rows.json")]) == 0
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (row["name"], row["mesh"], row["gap"]) == ("gpt-2", [64], 0)
    assert "| gpt-2 | 64 " in capsys.readouterr().out


def test_models_are_of_the_sizes_that_their_names_say() -> None:
    for case in CASES:
        if case.name in BILLIONS:
            assert case.model().parameters == pytest.approx(BILLIONS[case.name] * 1e9, rel=0.005)
    unrolled, scanned = (shapes.gpt(96, scanned=scanned).parameters for scanned in (False, True))
    assert unrolled == scanned


def test_meshes_have_as_many_devices_as_their_clusters() -> None:
    for case in CASES:
        assert load_cluster(case.cluster).topology.device_count == prod(case.mesh or (64,))
    assert max(prod(case.mesh) for case in CASES) == 8192
