"""What a search tells while it runs: best and bound as they move, on every mesh and within every limit."""

from __future__ import annotations

from itertools import groupby, pairwise
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar import DeviceMesh, SearchOptions, SearchProgress, SolveOptions
from autopar.errors import InvalidOption
from autopar.search import mesh_context

PARAMS = [jax.ShapeDtypeStruct((256, 256), jnp.float32) for _ in range(4)]
X = jax.ShapeDtypeStruct((64, 256), jnp.float32)
MESH = {"a": 4, "b": 2}
WIDE = SolveOptions(max_table_entries=1, max_sweeps=2)
"""Nothing is eliminated, so that bound and choice move."""


def loss(ws: Any, x: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).sum()


def told(**options: Any) -> tuple[autopar.Plan, list[SearchProgress]]:
    seen: list[SearchProgress] = []
    settings = {"cluster": "cpu8", "mesh": MESH, **options}
    search = SearchOptions(solve=settings.pop("solve", WIDE), on_progress=seen.append)
    return autopar.plan(loss, PARAMS, X, options=search, **settings), seen


def test_best_and_bound_move_towards_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_context, "standing", lambda *_: None)
    plan, seen = told()
    assert len(seen) >= 2
    assert {(p.mesh, p.memory_limit_bytes) for p in seen} == {(plan.mesh, None)}
    for before, after in pairwise(seen):
        assert before.time_s <= after.time_s
        assert before.objective_s >= after.objective_s
        assert before.lower_bound_s <= after.lower_bound_s
        assert (before.objective_s, before.lower_bound_s) != (
            after.objective_s,
            after.lower_bound_s,
        )
    assert seen[-1].objective_s == pytest.approx(plan.objective_s)
    assert seen[-1].lower_bound_s == pytest.approx(plan.lower_bound_s)


def test_what_is_solved_at_once_is_told_too() -> None:
    plan, seen = told(solve=SolveOptions())
    assert [(p.objective_s, p.lower_bound_s) for p in seen] == [
        (plan.objective_s, plan.lower_bound_s)
    ]


def test_every_mesh_and_limit_is_told() -> None:
    """Where a program holds more than was counted, what is found within less is told as found within that."""
    plan, _ = told()
    limit = int(0.8 * plan.peak_memory_bytes)
    limited, seen = told(memory_limit_bytes=limit)
    assert {p.memory_limit_bytes for p in seen} >= {None, limit}
    within = [p.objective_s for p in seen if (p.memory_limit_bytes or limit + 1) <= limit]
    assert any(limited.objective_s == pytest.approx(cost, rel=1e-12) for cost in within)
    _, everywhere = told(mesh=None)
    runs = [mesh for mesh, _ in groupby(everywhere, key=lambda p: p.mesh)]
    assert len(set(runs)) > 2


def test_a_plan_is_the_same_whoever_watches() -> None:
    assert (
        told()[0].report()
        == autopar.plan(
            loss, PARAMS, X, cluster="cpu8", mesh=MESH, options=SearchOptions(solve=WIDE)
        ).report()
    )
    assert SearchOptions(on_progress=print) == SearchOptions()


def test_a_line_says_where_and_how_far() -> None:
    mesh = DeviceMesh.of(MESH)
    assert (
        str(SearchProgress(1.25, mesh, None, 0.5, 0.25))
        == f"1.2 s: mesh {mesh}: best 0.5 s, at least 0.25 s"
    )
    none = SearchProgress(0.0, mesh, 2048, inf, -inf)
    assert str(none) == f"0.0 s: mesh {mesh} within 2 KiB: nothing found yet"


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(InvalidOption, match="on_progress is 3: pass a function"):
        SearchOptions(on_progress=3)  # pyright: ignore[reportArgumentType]
