"""Refused at once: what every choice holds is more than fits, on every mesh: nothing is searched."""

from __future__ import annotations

import re
from typing import Any

import pytest

import autopar
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.cost.pricing import Pricing, Roofline
from autopar.errors import NoFeasiblePlan
from autopar.search import refuse_at_once, search
from autopar.search.mesh_search import MeshSearch
from autopar.search.mesh_shapes import mesh_shapes, promise
from autopar.search.recomputable import live_peak_bytes
from autopar.search.recompute_solve import RecomputeSolve
from autopar.search.task import Task
from autopar.solve.problem.rows import least_use
from autopar.trace import trace
from cost_models import load_cluster
from tests.recompute.steps import arrays, scanned, specs

pytestmark = pytest.mark.usefixtures("fused_as_ever")

ARGS = specs(scanned, arrays(128, 4, 8192))[1]
OPTIONS = {"kept": autopar.SearchOptions(recompute="never"), "recomputed": autopar.SearchOptions()}
NEEDED = re.compile(r"mesh (.*) fits.*any plan needs .*? \(([\d,]+) bytes\)")


def planned(limit: int | None, options: str) -> autopar.Plan:
    """The plan of the scanned step within a limit."""
    setting: dict[str, Any] = {"cluster": "8xh100", "options": OPTIONS[options]}
    return autopar.plan(scanned, *ARGS, memory_limit_bytes=limit, **setting)


def refused(limit: int, options: str) -> tuple[str, int, int]:
    """What says that nothing fits: the mesh, what any plan needs, and the smallest peak found."""
    with pytest.raises(NoFeasiblePlan) as told:
        planned(limit, options)
    found = NEEDED.search(str(told.value))
    assert found is not None
    assert told.value.min_peak_bytes is not None
    return found[1], int(found[2].replace(",", "")), told.value.min_peak_bytes


@pytest.mark.parametrize("options", OPTIONS)
def test_nothing_is_searched_and_as_much_is_told(
    monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    limit = planned(None, options).peak_memory_bytes // 20
    with monkeypatch.context() as patch:
        patch.setattr(search, "refused_at_once", lambda _: None)
        searched = refused(limit, options)
    monkeypatch.setattr(search, "_raced", None)
    at_once = refused(limit, options)
    assert at_once[1] == searched[1]
    assert (
        limit < at_once[1] <= at_once[2] <= 1.05 * searched[2]
    )  # of few tries, on either of two equal meshes


def places(limit: int, options: str) -> list[MeshSearch]:
    """The search of that step within a limit, on every mesh."""
    cluster = load_cluster("8xh100")

    def pricing(graph: OpGraph, mesh: DeviceMesh) -> Pricing:
        return Roofline(graph, mesh, cluster)

    graph = trace(scanned, ARGS).graph
    task = Task(graph, pricing, memory_limit_bytes=limit, options=OPTIONS[options])
    return search.places_of(task, mesh_shapes((8,), 2))


@pytest.mark.parametrize("options", OPTIONS)
def test_just_what_is_needed_is_not_refused(options: str) -> None:
    """At the least that every choice holds, on the mesh where that is least, something may fit."""
    least = [refuse_at_once._least_bytes(place) for place in places(1, options)]
    needed = int(min(least))
    assert refuse_at_once.refused_at_once(places(needed, options)) is None
    refused = refuse_at_once.refused_at_once(places(int(0.99 * needed), options))
    assert refused is not None
    assert refused.least_bytes == min(least)
    meshes = [place.ground.mesh for place in places(1, options)]
    equal = [mesh for mesh, needs in zip(meshes, least, strict=True) if needs == min(least)]
    assert refused.where == str(min(equal, key=promise))


def test_of_what_devices_can_hold_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refuse_at_once, "_least_bytes", None)
    graph = places(1, "kept")[0].task.graph
    share = (live_peak_bytes(graph) + sum(tensor.size_bytes for tensor in graph.inputs)) / 8
    assert refuse_at_once.refused_at_once(places(int(share) + 1, "kept")) is None
    with pytest.raises(TypeError):
        refuse_at_once.refused_at_once(places(int(share) - 1, "kept"))


@pytest.mark.parametrize("options", OPTIONS)
def test_what_is_held_is_that_of_the_problem(options: str) -> None:
    for place in places(1, options):
        attempt = refuse_at_once._with_recomputation(place.attempt())
        assert isinstance(attempt, RecomputeSolve) is (options == "recomputed")
        assert attempt.least_bytes() == least_use(attempt.problem(0.0).usages) > 0
