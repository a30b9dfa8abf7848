"""The solver's plan computes the same and runs what it lists, where even the smallest model is worth splitting."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import pytest

import autopar
from autopar.core.program import ShardedProgram
from autopar.emit.wrap import device_mesh, wrap
from cost_models import Cluster, load_cluster
from cost_models.cluster import replace_link
from tests.equivalence.cases import (
    MESHES,
    SIZES,
    Case,
    gradients_case,
    inputs_of,
    space_of,
    step_case,
)
from tests.equivalence.check import check, prove
from tests.equivalence.draw import local_plan
from tests.quick_some import one_quick

CASES = {"step": step_case, "gradients": gradients_case}


@lru_cache
def slow_devices() -> Cluster:
    """Devices far slower than the links between them, and no latency."""
    cluster = replace_link(load_cluster("8xh100"), "device", latency_s=0.0)
    device = replace(cluster.device, memory_bandwidth_bytes_per_s=1e9, launch_s=0.0)
    return replace(cluster, name="slow devices", device=device)


def plan_of(case: Case, mesh: str, mode: str = "auto") -> autopar.Plan:
    with case.precision():
        return autopar.plan(
            case.fn, *case.args, cluster=slow_devices(), mesh=dict(MESHES[mesh].axes), mode=mode
        )


def check_plan(case: Case, plan: autopar.Plan) -> None:
    """The program as it runs; and before its all-reduces are put into buckets JAX can prove its replication."""
    assert check(case, plan.program()).exact
    prove(case, case.states(plan.record.stage, permutes=False)["mark_mirror"])


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(
    ("part", "model", "mesh"),
    [
        pytest.param(
            part, model, mesh, marks=[pytest.mark.slow] * ((n + part_n) % 2 or (mesh_n - n) % 3 > 0)
        )
        for part_n, part in enumerate(CASES)
        for n, model in enumerate(SIZES)
        for mesh_n, mesh in enumerate(MESHES)
    ],
)
def test_the_plan_computes_the_same_and_runs_what_it_lists(
    model: str, part: str, mesh: str
) -> None:
    case = CASES[part](model)
    plan = plan_of(case, mesh)
    program = plan.program()
    assert len(program.collectives) > 3
    assert any(program.values[value].placement.split_axes for value in program.inputs)
    check_plan(case, plan)


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("model", SIZES)
def test_data_parallel_computes_the_same_and_runs_what_it_lists(model: str) -> None:
    """Every gradient is reduced, in buckets."""
    case = step_case(model)
    plan = plan_of(case, "8", mode="data_parallel")
    assert {move.role for move in plan.program().collectives} >= {"mirror"}
    assert any(len(move.ins) > 1 for move in plan.program().collectives)
    check_plan(case, plan)


VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mlp with sgd": ("mlp", "sgd", {}),
    "gpt with sgd and a typed key": ("gpt", "sgd", {"typed_key": True}),
    "tied with adam": ("tied", "adam", {}),
    "gpt without dropout": ("gpt", "sgd", {"dropout": 0.0}),
}


@pytest.mark.parametrize("variant", one_quick(VARIANTS))
def test_other_optimisers_and_kinds_of_randomness(variant: str) -> None:
    model, optimiser, changes = VARIANTS[variant]
    case = step_case(model, optimiser, **changes)
    check_plan(case, plan_of(case, "8"))


@pytest.mark.slow
@pytest.mark.parametrize("typed_key", [False, True])
def test_rematerialised_blocks_stay_what_they_are(typed_key: bool) -> None:
    """Two blocks, forward and backward: as many remat operators in the emitted program as regions in the graph."""
    case = gradients_case("gpt", layers=2, remat=True, typed_key=typed_key)
    plan = plan_of(case, "8")
    check_plan(case, plan)
    assert remats(case, plan.program()) == len(case.graph.regions) > 0


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["8", pytest.param("2x4", marks=pytest.mark.slow)])
def test_rematerialised_blocks_survive_any_plan(mesh: str) -> None:
    case = gradients_case("gpt", remat=True)
    program = case.program(local_plan(case, space_of(case, mesh), 0))
    assert any(move.region is not None for move in program.collectives)
    check(case, program)
    assert remats(case, program) == len(case.graph.regions) > 0


def remats(case: Case, program: ShardedProgram) -> int:
    """How many remat operators the emitted function has."""
    with case.precision():
        emitted = wrap(program, device_mesh(program.mesh, jax.devices()))
        return kinds(jax.make_jaxpr(emitted)(*inputs_of(case)).jaxpr).count("remat2")


def kinds(jaxpr: Any) -> list[str]:
    """The primitives of a jaxpr and of all inside it."""
    found: list[str] = []
    for eqn in jaxpr.eqns:
        found.append(eqn.primitive.name)
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            found += kinds(inner) if hasattr(inner, "eqns") else []
    return found
