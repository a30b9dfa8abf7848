"""What is carried by itself, what that costs, and pins that override it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.placement import Placement
from autopar.search.constraints.records import Constraint
from tests.api.same import PARAMS, SLOW, X, check, step

SQUARE = jax.ShapeDtypeStruct((64, 64), jnp.float32)
ROWS, COLUMNS = Placement((("a",), ())), Placement(((), ("a",)))


def transpose(x: Any) -> Any:
    return x.T


def planned(**options: Any) -> autopar.Plan:
    return autopar.plan(transpose, SQUARE, cluster=SLOW, mesh={"a": 8}, **options)


def test_what_looks_like_an_input_only_costs_nothing() -> None:
    free, carried = planned(), planned(carry=[(0, 0)])
    assert free.objective_s == planned(carry=None).objective_s
    assert free.summary.carry_time_s == 0
    assert carried.summary.carry_time_s == pytest.approx(carried.communication_time_s)
    assert not free.collectives
    assert free.carry_price() is None
    assert carried.collectives
    price = carried.carry_price()
    assert price is not None
    assert price is carried.carry_price()
    assert price.constraint == "carry output[0] -> x"
    assert (
        price.at_least_s
        == price.at_most_s
        == pytest.approx(carried.objective_s - free.serial_time_s)
    )
    assert planned(donate_argnums=0).objective_s == carried.objective_s


def test_the_report_says_what_is_carried(tmp_path: Path) -> None:
    plan = autopar.plan(step, PARAMS, X, cluster=SLOW)
    (row,) = plan.summary.carried
    assert (row.output, row.input, row.count) == ("output[0]", "p", 2)
    assert "output[0] -> p (2 arrays)" in plan.report()
    assert "carry output[0] -> p" not in plan.report()
    assert "carry output[0] -> p (2 arrays)" in plan.report(prices=True)
    assert "carried" not in planned().report()
    plan.save(tmp_path / "plan.json")
    assert autopar.Plan.load(tmp_path / "plan.json").report() == plan.report(compare=False)


def pinned(*sides: P | None) -> tuple[Constraint, ...]:
    names = zip(("x", "output[0]"), sides, strict=True)
    return tuple(autopar.pin(name, spec) for name, spec in names if spec is not None)


@pytest.mark.parametrize(
    ("constraints", "lying", "leaving"),
    [
        (pinned(P("a"), P(None, "a")), ROWS, COLUMNS),
        (pinned(P("a"), P("a")), ROWS, ROWS),
        (pinned(P("a"), None), ROWS, ROWS),
        (pinned(None, P("a")), ROWS, ROWS),
        (pinned(P(P.UNCONSTRAINED, "a"), P(None, P.UNCONSTRAINED)), COLUMNS, COLUMNS),
        ((autopar.replicate("x"), autopar.pin("output*", P("a"))), Placement(((), ())), ROWS),
    ],
)
def test_pins_override_the_carry(
    constraints: tuple[Constraint, ...], lying: Any, leaving: Any, tmp_path: Path
) -> None:
    scratch = planned(carry=[(0, 0)], constraints=constraints)
    again = planned(carry=[(0, 0)]).resolve(constraints=constraints)
    for plan in (scratch, again):
        stage = plan.record.stage
        assert (stage.inputs, stage.outputs) == ((lying,), (leaving,))
        assert plan.objective_s == scratch.objective_s
    assert scratch.resolve(constraints=()).objective_s == planned(carry=[(0, 0)]).objective_s
    scratch.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    x = np.arange(64.0 * 64, dtype=np.float32).reshape(64, 64)
    compiled = loaded.compile(transpose)
    np.testing.assert_array_equal(compiled(x), x.T)
    assert compiled.plan(x).summary.carried == scratch.summary.carried


def test_pins_override_the_carry_of_a_mode() -> None:
    """Data parallelism holds parameters whole; the result that follows may be pinned split."""
    compiled = autopar.compile(
        step,
        cluster=SLOW,
        mesh={"a": 8},
        mode="data_parallel",
        constraints=(autopar.pin("output[0]['w']", P("a")),),
    )
    (new, _) = check(compiled, step, PARAMS, X)
    assert new["w"].sharding.spec == P("a", None)
    assert compiled.plan(PARAMS, X).placements["p['w']"] == Placement(((), ()))


leaves = st.sampled_from([(8,), (8, 4), (2, 8)]).map(lambda shape: np.ones(shape, np.float32))
trees = st.recursive(
    leaves,
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1)
        | st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(
    state=trees,
    data=st.lists(leaves, max_size=2),
    before=st.lists(leaves, max_size=2),
    donate=st.booleans(),
)
def test_a_returned_state_is_carried_whole_and_nothing_else(
    state: Any, data: Any, before: Any, donate: bool
) -> None:
    """Other results and arguments, of the same shapes or not, are never carried; nor is a bare array, if kept."""
    from autopar.trace import trace

    def fn(state: Any, *batch: Any) -> Any:
        return (
            *(x * 2 for x in before),
            jax.tree.map(lambda leaf: leaf + 1, state),
            *(x.sum() for x in batch),
        )

    graph = trace(fn, (state, *data), donate_argnums=0 if donate else ()).graph
    count = len(jax.tree.leaves(state))
    is_tree = not isinstance(state, np.ndarray)
    if is_tree:
        assert graph.carry == tuple((len(before) + n, n) for n in range(count))
    elif donate:
        assert [source for _, source in graph.carry] == [0]
        assert all(graph.outputs[out].shape == state.shape for out, _ in graph.carry)
    else:
        assert graph.carry == ()


def test_a_result_is_named_as_in_reports_too() -> None:
    for name in ("output[0]['w']", "[0]['w']"):
        plan = autopar.plan(
            lambda p, x: ({"w": p["w"] * x.sum()}, x.sum()),
            {"w": SQUARE},
            jax.ShapeDtypeStruct((8,), jnp.float32),
            cluster=SLOW,
            mesh={"a": 8},
            carry=[(name, "p['w']")],
        )
        assert dict(plan.bound.traced.graph.carry) == {0: 0}
