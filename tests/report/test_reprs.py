"""What is shown as the last line of a cell: short, and the same figures."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.report.compare import Comparison
from cost_models import load_cluster
from tests.report import make
from tests.report.test_render import Cells

SHAPES = (jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((32, 64), jnp.float32))
OPTIONS: dict[str, Any] = {"cluster": "2xh100", "mesh": {"all": 2}}


def step(w: Any, x: Any) -> Any:
    return jnp.mean(jnp.tanh(x @ w))


@cache
def shown() -> dict[str, Any]:
    planned = autopar.compile(step, **OPTIONS)
    session = autopar.explore(step, *SHAPES, **OPTIONS)
    return {
        "answer": session.links(0.5),
        "session": session,
        "compared": autopar.compare(session.start, session.plan),
        "plan": planned.plan(*SHAPES),
        "compiled": planned,
        "not planned": autopar.compile(step, **OPTIONS),
        "front": autopar.front(step, *SHAPES, points=2, **OPTIONS),
        "report": make.report(layers=96),
        "comparison": Comparison(1.0, 2.0, 0.1, ("links",)),
        "cluster": load_cluster("8x8xh100"),
    }


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("plan", "Plan(step on 2xh100, all=2: "),
        ("compiled", "Compiled(step, 1 plan)"),
        ("not planned", "Compiled(step, not planned yet)"),
        ("front", "Front("),
        (
            "report",
            "Report(train_step on 8xh100, data=2 x model=4: 2.25 ms a step, peak 12 MiB, gap 0 %)",
        ),
        ("comparison", "Comparison(this 1 s, other 2 s, told apart with a probability of "),
        ("compared", "Comparison("),
        ("answer", "Answer(links(0.5): step time "),
        ("session", "Session(step on 2xh100 (device x 0.5), all=2: "),
        ("cluster", "Cluster(8x8xh100: 64 x h100-sxm of 74.5 GiB, "),
    ],
)
def test_it_is_a_line(what: str, expected: str) -> None:
    said = repr(shown()[what])
    assert said.startswith(expected)
    assert len(said) < 200
    assert "\n" not in said


@pytest.mark.parametrize(
    "what",
    ["plan", "compiled", "front", "report", "comparison", "cluster", "session", "answer"],
)
def test_notebooks_show_a_small_table(what: str) -> None:
    page = shown()[what]._repr_html_()
    assert len(page) < 20_000
    assert "<script" not in page
    cells = Cells()
    cells.feed(page)
    assert cells.open == []


def test_the_figures_are_the_plan_s() -> None:
    plan = shown()["plan"]
    assert plan.summary.in_short in repr(plan)
    assert plan.summary.in_short in shown()["compiled"]._repr_html_()
    assert ["cluster", "2xh100, mesh all=2 (2 devices)"] in rows(plan)


def rows(plan: autopar.Plan) -> list[list[str]]:
    cells = Cells()
    cells.feed(plan._repr_html_())
    return cells.rows
