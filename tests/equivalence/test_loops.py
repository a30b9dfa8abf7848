"""Loops and branches: any plan computes the same, runs what it lists, and its replication is proven by JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.equivalence.cases import MESHES, Case, space_of
from tests.equivalence.check import check, prove
from tests.equivalence.draw import local_plan, uniform_plan
from tests.equivalence.loops import LOOPS, loop_case
from tests.quick_some import diagonal

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10)))


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(("name", "mesh"), diagonal(LOOPS, MESHES))
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_plan_of_a_loop_computes_the_same(name: str, mesh: str, seed: int) -> None:
    case, space = loop_case(name), space_of(loop_case(name), mesh)
    stage = uniform_plan(space, seed) if seed % 2 else local_plan(case, space, seed)
    check(case, case.program(stage))
    prove(case, case.states(stage, permutes=False)["mark_mirror"])


@pytest.mark.parametrize("unroll", [2, 3, 5])
def test_an_unrolled_scan_runs_its_collectives_in_every_copy_of_its_body(unroll: int) -> None:
    """Five trips, two at a time with one left over; three and two left; all five, without a loop."""

    def repeat(w: jax.Array, x: jax.Array) -> jax.Array:
        return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=5, unroll=unroll)[0]

    case = Case(repeat, (np.eye(8) / 2, np.ones((8, 8))), "float64")
    program = case.program(uniform_plan(space_of(case, "8"), 1))
    assert any(program.tree.path(move.region) for move in program.collectives)
    check(case, program)
