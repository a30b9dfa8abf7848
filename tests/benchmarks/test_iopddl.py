"""The contest benchmark: its own evaluation against the solver's, and what it prints."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autopar.solve import Solution, solve
from autopar.solve.problem import objective, peak
from benchmarks import iopddl, iopddl_instance
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


def test_the_benchmark_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "drawn" in capsys.readouterr().out
