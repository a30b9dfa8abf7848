"""Several graphs of one function are one search: none is worked on before all have a choice and a bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autopar.search.alternatives import search_best
from autopar.search.mesh_context import MeshContext
from autopar.search.mesh_search import MeshSearch
from autopar.search.search import find_plan
from autopar.search.task import SearchOptions, Task
from tests.search.test_front import CASES, FOUR, cluster_of, task_of


def tasks(gap_tolerance: float) -> list[Task]:
    found = [task_of(fn, shapes, cluster_of(4, bandwidth)) for fn, shapes, bandwidth in CASES]
    return [replace(task, options=SearchOptions(gap_tolerance=gap_tolerance)) for task in found]


def test_the_best_of_all_is_found_and_its_bound_holds_for_all() -> None:
    alone = [find_plan(task, [FOUR]).plan for task in tasks(0.0)]
    position, planned = search_best(tasks(0.0), [FOUR])
    best = min(plan.objective_s for plan in alone)
    assert alone[position].objective_s == pytest.approx(best)
    assert planned.plan.objective_s == pytest.approx(best)
    assert planned.plan.lower_bound_s <= best * (1 + 1e-9)


def test_all_are_looked_at_before_one_is_worked_on_and_the_hopeless_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[str] = []
    forgotten: list[MeshContext] = []
    roughly, free, forget = MeshSearch._found_roughly, MeshSearch.free, MeshContext.forget

    def noted(name: str, method: Any) -> Any:
        return lambda place, *below: steps.append(name) or method(place, *below)

    monkeypatch.setattr(MeshSearch, "_found_roughly", noted("roughly", roughly))
    monkeypatch.setattr(MeshSearch, "free", noted("fully", free))
    monkeypatch.setattr(
        MeshContext, "forget", lambda ground: forgotten.append(ground) or forget(ground)
    )
    every = tasks(0.005)
    position, planned = search_best(every, [FOUR])
    assert steps[: len(every)] == ["roughly"] * len(every)
    assert forgotten
    assert all(ground.graph is not every[position].graph for ground in forgotten)
    assert all(not ground._problems for ground in forgotten)
    assert planned.ground.graph is every[position].graph
