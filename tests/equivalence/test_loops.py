"""Loops and branches: any plan computes the same, runs what it lists, and its replication is proven by JAX."""

from __future__ import annotations

import pytest

from tests.equivalence.cases import MESHES, space_of
from tests.equivalence.check import check, prove
from tests.equivalence.draw import local_plan, uniform_plan
from tests.equivalence.loops import LOOPS, loop_case

SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20)))


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_plan_of_a_loop_computes_the_same(name: str, mesh: str, seed: int) -> None:
    case, space = loop_case(name), space_of(loop_case(name), mesh)
    stage = uniform_plan(space, seed) if seed % 2 else local_plan(case, space, seed)
    check(case, case.program(stage))
    prove(case, case.states(stage, permutes=False)["mark_mirror"])
