"""The contest benchmark: its own evaluation against the solver's, and what it prints."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopar.solve import Solution, solve
from autopar.solve.fixing import reduced_cost_fixing as bar
from autopar.solve.presolve import arc_consistency as forbid
from autopar.solve.primal import large_neighbourhood as regions
from autopar.solve.primal import tree_moves as anneal
from autopar.solve.problem.problem import objective, peak
from autopar.solve.trws import dual
from autopar.solve.trws import smoothed_ascent as glide
from benchmarks import iopddl, iopddl_instance, iopddl_process
from tests.solve.draw import chain_with_skips


def instance() -> dict[str, Any]:
    """Integer costs, a forbidden entry, parallel edges, a node without memory, a limit that binds."""
    drawn = chain_with_skips(12, 4, 12, 5, memory=True)
    edges = [[edge.u, edge.v] for edge in drawn.edges]
    costs = [[int(x * 1e5) for x in edge.cost.ravel()] for edge in drawn.edges]
    costs[0][5] = 10**18
    edges.append(edges[1])
    costs.append(list(range(16)))
    return {
        "name": "drawn",
        "nodes": {
            "intervals": [[use.start, use.stop] for use in drawn.usages[:-1]] + [[0, 0]],
            "costs": [[int(x * 1e5) for x in cost] for cost in drawn.node_costs],
            "usages": [[int(x) for x in use.size_bytes] for use in drawn.usages],
        },
        "edges": {"nodes": edges, "costs": costs},
        "usage_limit": 30,
    }


def test_both_evaluations_agree() -> None:
    drawn = instance()
    problem = iopddl_instance.as_problem(drawn)
    rng, agreed = np.random.default_rng(0), 0
    for _ in range(300):
        choice = tuple(int(rng.integers(count)) for count in problem.counts)
        feasible = np.isfinite(objective(problem, choice)) and peak(problem, choice) <= 30
        if feasible:
            agreed += 1
            assert iopddl_instance.evaluate(drawn, choice) == objective(problem, choice)
        else:
            with pytest.raises(ValueError, match=r"forbidden|limit"):
                iopddl_instance.evaluate(drawn, choice)
    assert 0 < agreed < 300


@pytest.mark.slow
def test_the_benchmark_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "drawn.json.gz", tmp_path / "out.json"
    with gzip.open(path, "wt") as file:
        json.dump({"problem": instance()}, file)
    iopddl.main([str(path), "--time-limit", "120", "--json", str(out), "--verify"])
    (found,) = json.loads(out.read_text())["instances"]
    best: Solution = solve(iopddl_instance.as_problem(instance()))
    assert found["name"] == "drawn"
    assert found["cost"] == found["lower_bound"] == best.objective
    assert iopddl_instance.evaluate(instance(), found["choice"]) == found["cost"]
    assert found["verified"].startswith(f"bound {found['cost']:,.0f} re-checked")
    told = capsys.readouterr().out
    assert "drawn" in told
    assert "loops compiled" in told


def test_the_problem_that_compiles_loops_calls_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of every kind of work: sweeps, annealing's forests, walks, windows, memory, forbidden entries."""
    calls: Counter[str] = Counter()

    def counted(kernel: Any, name: str) -> Any:
        def call(*args: Any) -> Any:
            calls[name] += 1
            return kernel(*args)

        return call

    kernels = [
        (dual, "sweep"),
        (anneal, "solve_forest"),
        (regions, "move"),
        (bar, "fix_dear"),
        (glide, "soft_use"),
        (forbid, "propagate"),
        (dual, "decode"),
    ]
    for room, name in kernels:
        monkeypatch.setattr(room, name, counted(getattr(room, name), name))
    iopddl_process.solve_drawn()
    assert set(calls) == {name for _, name in kernels}


def hang(_path: Path, _ends: float, _check: bool, out: Connection) -> None:
    """Finds two choices, and then looks at no clock any more."""
    for cost in (7.0, 5.0):
        out.send(iopddl_process.Moment(0.1, cost, 1.0, 0, np.array([int(cost)], dtype=np.int32)))
    time.sleep(600)


def fall(_path: Path, _ends: float, _check: bool, out: Connection) -> None:
    """Finds a choice and is killed, as for want of memory."""
    out.send(iopddl_process.Moment(0.1, 7.0, 1.0, 0, np.array([3], dtype=np.int32)))
    os._exit(9)


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(
    ("work", "choices", "ended"), [(hang, [7, 5], "late"), (fall, [3], "exit code 9")]
)
def test_what_a_process_found_is_kept_whatever_becomes_of_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: iopddl_process.Work,
    choices: list[int],
    ended: str,
) -> None:
    """Once the last choice is there, time flies."""
    passed_s = [0.0]
    monkeypatch.setattr(iopddl_process, "perf_counter", lambda: passed_s[0])

    def on_moment(now: iopddl_process.Moment) -> None:
        passed_s[0] = 900.0 if now.cost == 5 else 0.0

    record = iopddl_process.Apart(tmp_path, 900.0, check=True, work=work).record(on_moment)
    assert [choice.tolist() for choice in record.choices] == [[s] for s in choices]
    assert ended in record.ended
    assert record.verified is None


@pytest.mark.slow
def test_an_instance_without_an_answer_is_told_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is late before it begins, and then one that nothing satisfies."""
    impossible = {**instance(), "name": "impossible", "usage_limit": 0}
    paths = [tmp_path / "drawn.json", tmp_path / "impossible.json"]
    for path, problem in zip(paths, (instance(), impossible), strict=True):
        path.write_text(json.dumps({"problem": problem}))
    late = iopddl.run(paths[0], 0.01, show=False, check=False)
    assert (late.cost, late.choice, late.gap) == (None, [], None)
    assert late.ended.startswith("late")
    out = tmp_path / "out.json"
    iopddl.main([str(paths[1]), "--time-limit", "120", "--json", str(out)])
    (found,) = json.loads(out.read_text())["instances"]
    assert found["cost"] is None
    assert found["ended"].startswith("Infeasible")
    assert "impossible" in capsys.readouterr().out


def test_a_choice_that_the_file_refuses_gives_way_to_the_one_before() -> None:
    drawn, good = instance(), list(solve(iopddl_instance.as_problem(instance())).choice)
    u, v = drawn["edges"]["nodes"][0]
    bad = list(good)
    bad[u], bad[v] = 1, 1  # forbidden: entry 5 of the first edge, of 4 by 4
    assert iopddl.cheapest(drawn, [bad, good]) == (iopddl_instance.evaluate(drawn, good), good)
    assert iopddl.cheapest(drawn, [bad]) == (None, [])
