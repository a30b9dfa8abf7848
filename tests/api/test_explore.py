"""explore: a question is answered by the plan that is made afresh for it; a bad one leaves the session as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.api import explore as module
from autopar.errors import InvalidConstraint, InvalidMesh, InvalidOption, NoFeasiblePlan, Unsolved
from autopar.search.task import SearchOptions
from autopar.solve import SolveOptions
from cost_models import replace_link

LITTLE = SolveOptions(max_sweeps=100, max_rounds=1, anneal_passes=20, cp_sat_work=0.2)
OPTIONS: dict[str, Any] = {
    "cluster": "8xh100",
    "mesh": {"x": 8},
    "donate_argnums": 0,
    "options": SearchOptions(recompute="never", max_tightenings=2, solve=LITTLE),
}
PIN = autopar.pin("params['up']", P(None, "x"))


def step(params: dict[str, Any], x: Any, y: Any) -> Any:
    def loss(p: dict[str, Any]) -> Any:
        return jnp.mean((jnp.tanh(x @ p["up"]) @ p["down"] - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def arguments(rows: int = 512) -> tuple[Any, ...]:
    def shape(*dims: int) -> Any:
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    params = {"up": shape(256, 1024), "down": shape(1024, 256)}
    return params, shape(rows, 256), shape(rows, 256)


def afresh(rows: int = 512, **change: Any) -> autopar.Plan:
    return autopar.plan(step, *arguments(rows), **{**OPTIONS, **change})


@pytest.fixture(scope="module")
def started() -> autopar.Session:
    return autopar.explore(step, *arguments(), **OPTIONS)


@pytest.fixture
def session(started: autopar.Session) -> Any:
    """The session at its beginning."""
    yield started
    while started.history:
        started.undo()


def slower() -> autopar.Cluster:
    cluster = autopar.load_cluster("8xh100")
    link = cluster.topology.levels[0].link
    return replace_link(cluster, "device", bandwidth_bytes_per_s=0.25 * link.bandwidth_bytes_per_s)


QUESTIONS: dict[str, tuple[Callable[[autopar.Session], Any], dict[str, Any]]] = {
    "pin": (lambda s: s.pin("params['up']", P(None, "x")), {"constraints": (PIN,)}),
    "forbid": (
        lambda s: s.forbid("params['up']", "x"),
        {"constraints": (autopar.forbid("params['up']", "x"),)},
    ),
    "links": (lambda s: s.links(0.25), {"cluster": slower()}),
    "mesh": (lambda s: s.mesh({"a": 2, "b": 4}), {"mesh": {"a": 2, "b": 4}}),
    "batch": (lambda s: s.batch(1024), {"rows": 1024}),
}


@pytest.mark.parametrize("what", QUESTIONS)
def test_a_question_is_answered_by_the_plan_made_afresh(
    session: autopar.Session, what: str
) -> None:
    ask, change = QUESTIONS[what]
    before = session.plan.summary
    answer = ask(session)
    wanted = afresh(**change)
    assert session.plan.objective_s == pytest.approx(wanted.objective_s, rel=1e-9)
    assert answer.before is before
    assert answer.after is session.plan.summary
    assert session.history == (answer,)


def test_a_limit_that_binds_is_kept(session: autopar.Session) -> None:
    limit = session.plan.peak_memory_bytes * 9 // 10
    session.limit(limit)
    assert session.plan.peak_memory_bytes <= limit
    assert session.plan.objective_s >= afresh(memory_limit_bytes=limit).lower_bound_s
    assert (
        session.limit(None).after.peak_memory_bytes == session.history[0].before.peak_memory_bytes
    )


def test_a_limit_on_a_large_function_is_answered_by_what_is_met_about_it(
    session: autopar.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FEW_OPERATORS", 0)
    limit = session.plan.peak_memory_bytes * 9 // 10
    session.limit(limit)
    best = afresh(memory_limit_bytes=limit)
    assert session.plan.peak_memory_bytes <= limit == session.plan.summary.memory_limit_bytes
    assert session.plan.objective_s >= best.lower_bound_s * (1 - 1e-9)
    assert session.plan.lower_bound_s <= best.objective_s * (1 + 1e-9)
    kept = session.plan
    with pytest.raises(Unsolved, match="the smallest peak met is") as error:
        session.limit(1000)
    assert error.value.min_peak_bytes is not None
    assert limit > error.value.min_peak_bytes > 1000
    assert session.plan is kept


def test_questions_add_up_and_are_taken_back(session: autopar.Session) -> None:
    start = session.plan
    session.links(0.25)
    session.pin("params['up']", P(None, "x"))
    both = afresh(cluster=slower(), constraints=(PIN,))
    assert session.plan.objective_s == pytest.approx(both.objective_s, rel=1e-9)
    session.pin("params['up']", P("x"))
    assert len(session.asked.constraints) == 1
    answer = session.undo()
    assert session.plan.summary is answer.after
    assert session.asked.constraints == (PIN,)
    session.release("params['up']")
    assert session.plan.objective_s == pytest.approx(afresh(cluster=slower()).objective_s, rel=1e-9)
    session.links(1)
    assert session.plan is start


def test_the_front_is_within_what_is_asked() -> None:
    def mean(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w))

    def shape(*dims: int) -> Any:
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    options = {"cluster": "2xh100", "mesh": {"x": 2}}
    session = autopar.explore(mean, shape(64, 64), shape(32, 64), **options)
    session.pin("w", P(None, "x"))
    front = session.front(2)
    assert 1 <= len(front) <= 2
    assert front.fastest.objective_s == pytest.approx(session.plan.objective_s, rel=1e-2)
    assert all(str(plan.placements["w"]) == "[-, x]" for plan in front)


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda s: s.pin("params['ups']", P()), InvalidConstraint, r"Close to it: params\['up'\]"),
        (lambda s: s.pin("params['up']", P("z")), InvalidConstraint, "its axes are x"),
        (lambda s: s.mesh({"x": 3}), InvalidMesh, "has 3 devices, cluster '8xh100' has 8"),
        (lambda s: s.mesh("8"), InvalidMesh, "pass axis sizes by name"),
        (lambda s: s.links(0), InvalidOption, "a finite number > 0"),
        (lambda s: s.links(2, "divice"), InvalidOption, "did you mean 'device'"),
        (lambda s: s.limit("lots"), InvalidOption, '"16GiB"'),
        (lambda s: s.limit(1000), NoFeasiblePlan, "the smallest peak found is"),
        (lambda s: s.batch(0), InvalidOption, "a whole number >= 1"),
        (lambda s: s.release("x"), InvalidOption, "nothing is held yet"),
        (lambda s: s.undo(), InvalidOption, "nothing was asked"),
        (lambda s: s.front(1), InvalidOption, "a whole number >= 2"),
    ],
)
def test_a_bad_question_leaves_the_session_as_it_was(
    session: autopar.Session, ask: Any, error: type[Exception], said: str
) -> None:
    before = session.plan
    with pytest.raises(error, match=said):
        ask(session)
    assert session.plan is before
    assert session.history == ()


def test_a_batch_needs_data() -> None:
    def only_state(w: Any) -> Any:
        return w * 0.5

    session = autopar.explore(only_state, jax.ShapeDtypeStruct((64, 64), jnp.float32), **OPTIONS)
    with pytest.raises(InvalidOption, match="known to be data"):
        session.batch(8)
