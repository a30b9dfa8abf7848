"""Any feasible plan computes the same and runs what it lists: plans drawn at random, not chosen for being good."""

from __future__ import annotations

import pytest

from autopar.core.plan import Stage
from tests.equivalence.cases import MESHES, SIZES, Case, gradients_case, space_of, step_case
from tests.equivalence.check import check, prove
from tests.equivalence.draw import local_plan, uniform_plan

QUICK_SEEDS = (0, 2)
MESH_OF_QUICK = {0: "2x4", 2: "2x2x2"}
SLOW_SEEDS = tuple(seed for seed in range(24) if seed not in QUICK_SEEDS)
DEAR = ("gpt", "tied")
"""Seconds each to compile: without `slow` only one mesh for each kind of drawing."""
DRAWN = [
    pytest.param(
        *(seed, model, mesh),
        marks=[pytest.mark.slow] * (seed in SLOW_SEEDS or (model in DEAR and mesh != MESH_OF_QUICK[seed])),
    )
    for seed in (*QUICK_SEEDS, *SLOW_SEEDS)
    for model in SIZES
    for mesh in MESHES
]


def drawn(case: Case, mesh: str, seed: int) -> Stage:
    """Of four plans two are drawn uniformly and two such that neighbours mostly agree."""
    space = space_of(case, mesh)
    return uniform_plan(space, seed) if seed % 4 < 2 else local_plan(case, space, seed)


def case_of(model: str, seed: int) -> Case:
    """Gradients and training steps in turn.

    Not Adam's on a transformer: the gradient of a key's bias is zero but for rounding, and a plan that reduces it twice
    makes of its square a product of two different roundings: a negative one has no root.
    """
    optimiser = "momentum" if model == "gpt" else ""
    return step_case(model, optimiser) if seed % 2 else gradients_case(model)


@pytest.mark.parametrize(("seed", "model", "mesh"), DRAWN)
def test_a_random_plan_computes_the_same_and_runs_what_it_lists(seed: int, model: str, mesh: str) -> None:
    case = case_of(model, seed)
    check(case, case.program(drawn(case, mesh, seed)))


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("model", SIZES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
def test_jax_proves_the_replication_of_a_random_plan(model: str, mesh: str, seed: int) -> None:
    """Without buckets and permutes, which are beyond JAX's check, every program is within it."""
    case = case_of(model, seed)
    states = case.states(drawn(case, mesh, seed), permutes=False)
    prove(case, states["mark_mirror"])
