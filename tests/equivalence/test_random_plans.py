"""Any feasible plan computes the same and runs what it lists: plans drawn at random, not chosen for being good."""

from __future__ import annotations

import pytest

from autopar.core.plan import Stage
from tests.equivalence.cases import MESHES, SIZES, Case, gradients_case, space_of, step_case
from tests.equivalence.check import check, prove
from tests.equivalence.draw import local_plan, uniform_plan
from tests.quick_some import diagonal

QUICK_MODELS = {0: ("mlp", "cnn", "tied"), 2: ("mlp", "cnn", "gpt")}
"""By seed, one for each kind of drawing: each model on one mesh, of the two transformers one for each of them."""
DRAWN = [
    pytest.param(
        seed,
        *of_model.values,
        marks=of_model.marks
        or [pytest.mark.slow] * (of_model.values[0] not in QUICK_MODELS.get(seed, ())),
    )
    for seed in range(8)
    for of_model in diagonal(SIZES, MESHES, first=seed)
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


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(("seed", "model", "mesh"), DRAWN)
def test_a_random_plan_computes_the_same_and_runs_what_it_lists(
    seed: int, model: str, mesh: str
) -> None:
    case = case_of(model, seed)
    check(case, case.program(drawn(case, mesh, seed)))


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(("model", "mesh"), diagonal(SIZES, MESHES))
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_jax_proves_the_replication_of_a_random_plan(model: str, mesh: str, seed: int) -> None:
    """Without buckets and permutes, which are beyond JAX's check, every program is within it."""
    case = case_of(model, seed)
    states = case.states(drawn(case, mesh, seed), permutes=False)
    prove(case, states["mark_mirror"])
