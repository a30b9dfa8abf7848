"""One image and odd channels, so that only space can be split: the same values, and the permutes that are listed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autopar
from autopar.core.program import ShardedProgram
from tests.equivalence.cases import MESHES, Case, assert_equal
from tests.equivalence.check import check, collectives, prove, run
from tests.equivalence.draw import local_plan
from tests.equivalence.test_solver_plans import plan_of, slow_devices

NUMBERS = ("NHWC", "HWIO", "NHWC")


def convolve(x: jax.Array, w: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=NUMBERS, feature_group_count=groups
    )


def pooled(x: jax.Array) -> jax.Array:
    """Overlapping windows, padded."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def loss(params: dict[str, jax.Array], image: jax.Array) -> jax.Array:
    x = jax.nn.relu(convolve(image, params["first"]))
    x = pooled(x)
    x = jnp.tanh(convolve(x, params["depthwise"], groups=5))
    x = convolve(x, params["strided"], stride=2)
    x = x[:, ::-1] * jnp.cumsum(x, axis=1)
    return (x**2).mean()


def case_of(size: int = 32) -> Case:
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return jnp.asarray(rng.uniform(-1, 1, shape), jnp.float32)

    params = {"first": draw(3, 3, 3, 5), "depthwise": draw(5, 5, 1, 5), "strided": draw(3, 3, 5, 7)}
    return Case(jax.value_and_grad(loss), (params, draw(1, size, size, 3)), "float32")


def permutes(program: ShardedProgram) -> Counter[int]:
    """The bytes of the permutes of a program."""
    return Counter(move.size_bytes for move in program.collectives if move.kind == "permute")


@pytest.mark.parametrize("mesh", ["2x4", pytest.param("8", marks=pytest.mark.slow)])
def test_space_is_split_and_neighbours_exchange_what_windows_share(mesh: str) -> None:
    case = case_of()
    plan = plan_of(case, mesh)
    program = plan.program()
    exchanges = [move for move in program.collectives if move.role == "exchange"]
    assert {move.kind for move in exchanges} >= {"permute"}
    assert {op.split for op in plan.summary.operators if op.kind == "conv_general_dilated"} == {8}
    assert check(case, program).exact
    found = Counter(c.size_bytes for c in collectives(case, program) if c.kind == "permute")
    assert found == permutes(program)
    assert plan.communication_time_s >= sum(move.time_s for move in exchanges) > 0
    assert any(
        row.role == "exchange" and row.reason.startswith("inside") for row in plan.collectives
    )
    prove(case, case.states(plan.record.stage, permutes=False)["mark_mirror"])


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]
)
def test_any_plan_runs_the_exchanges_that_it_lists(mesh: str, seed: int) -> None:
    case = case_of(16)
    stage = local_plan(case, case.space(MESHES[mesh]), seed)
    check(case, case.program(stage))
    prove(case, case.states(stage, permutes=False)["mark_mirror"])


def test_a_saved_plan_keeps_its_exchanges(tmp_path: Path) -> None:
    case = case_of(16)
    plan = plan_of(case, "2x4")
    assert any(strategy.exchanges for strategy in plan.strategies)
    plan.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    assert loaded.strategies == plan.strategies
    found = loaded.compile(case.fn)(*case.args)
    assert_equal(case.expected, jax.device_get(found), case.dtype)


ALONE = {
    "cumsum": lambda x: jnp.cumsum(x, axis=1),
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, axis=1, reverse=True),
    "argmax": lambda x: jnp.argmax(x, axis=1),
    "top_k": lambda x: lax.top_k(x, 3),
    "rev": lambda x: x[:, ::-1],
}


def alone(name: str) -> Case:
    """One operator on one row, which only its own dim can split."""
    x = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (1, 1 << 16)), jnp.float32)
    return Case(ALONE[name], (x,), "float32")


@pytest.mark.parametrize("name", ALONE)
def test_an_operator_alone_is_split_along_its_own_dim(name: str) -> None:
    case = alone(name)
    with case.precision():
        plan = autopar.plan(case.fn, *case.args, cluster=slow_devices(), mesh={"x": 8})
    program = plan.program()
    assert any(move.role == "exchange" for move in program.collectives)
    assert check(case, program).exact


def test_an_exchange_for_a_result_that_nobody_reads_may_vanish() -> None:
    """The candidates' indices, where only the values are wanted."""
    whole = alone("top_k")
    case = Case(lambda x: lax.top_k(x, 3)[0], whole.args, "float32")
    program = autopar.plan(case.fn, *case.args, cluster=slow_devices(), mesh={"x": 8}).program()
    _, comparison = run(case, program)
    assert comparison.explained
    assert [vanished.reason for vanished in comparison.vanished] == ["unused"]
