"""Steps on grids, by rolls and by paddings that are cut again: neighbours send each other what they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from tests.equivalence.cases import Case
from tests.equivalence.check import check
from tests.equivalence.test_solver_plans import slow_devices
from tests.quick_some import diagonal

Grid = Any
Step = Callable[..., Any]
SHAPES = {"1d": (64,), "2d": (16, 12), "3d": (16, 3, 5)}
LARGE = {"1d": (1 << 26,), "2d": (8192, 8192), "3d": (512, 256, 512)}


def laplacian(u: Grid) -> Grid:
    return sum(jnp.roll(u, by, dim) for by in (1, -1) for dim in range(u.ndim)) - 2 * u.ndim * u


def heat(u: Grid) -> Grid:
    """Periodic in space, but for the first and the last elements of each dim, which are held at 0."""
    u = u + 0.1 * laplacian(u)
    for dim in range(u.ndim):
        before = (slice(None),) * dim
        u = u.at[(*before, 0)].set(0.0).at[(*before, -1)].set(0.0)
    return u


def wave(u: Grid, before: Grid) -> tuple[Grid, Grid]:
    return 2 * u - before + 0.1 * laplacian(u), u


def poisson(u: Grid, density: Grid) -> Grid:
    return jax.lax.fori_loop(0, 3, lambda _, u: u + laplacian(u) / (2 * u.ndim) - density, u)


def around(mode: str) -> Step:
    """Heat on a grid that is padded, of which as many neighbours are cut."""

    def step(u: Grid) -> Grid:
        wide, inside = jnp.pad(u, 1, mode=mode), (slice(1, -1),) * u.ndim
        ends = [(dim, end) for dim in range(u.ndim) for end in (slice(2, None), slice(None, -2))]
        return u + 0.1 * (
            sum(wide[(*inside[:dim], end, *inside[dim + 1 :])] for dim, end in ends)
            - 2 * u.ndim * u
        )

    return step


def gradient(step: Step) -> Step:
    return jax.grad(lambda u: (step(step(u)) ** 2).sum())


STEPS: dict[str, tuple[Step, int]] = {
    "heat": (heat, 1),
    "wave": (wave, 2),
    "poisson": (poisson, 2),
    "zeros around": (around("constant"), 1),
    "wrapped": (around("wrap"), 1),
    "edges": (around("edge"), 1),
    "gradient of edges": (gradient(around("edge")), 1),
    "gradient of heat": (gradient(heat), 1),
    "gradient of zeros around": (gradient(around("constant")), 1),
    "gradient of wrapped": (gradient(around("wrap")), 1),
}


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("name", "shape"), diagonal(STEPS, SHAPES))
def test_a_step_is_split_in_space_and_runs_what_it_lists(name: str, shape: str) -> None:
    step, count = STEPS[name]
    rng = np.random.default_rng(0)
    grids = tuple(jnp.asarray(rng.uniform(-1, 1, SHAPES[shape]), jnp.float32) for _ in range(count))
    case = Case(step, grids, "float32")
    plan = autopar.plan(step, *grids, cluster=slow_devices(), mesh={"x": 8})
    program = plan.program()
    row = 4 * np.prod(SHAPES[shape][1:], dtype=int)
    assert {move.kind for move in program.collectives} <= {"permute", "all_reduce"}
    assert max(move.size_bytes for move in program.collectives) <= row
    check(case, program)


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("name", "shape"), diagonal(STEPS, LARGE))
def test_eight_devices_hold_an_eighth(name: str, shape: str) -> None:
    step, count = STEPS[name]
    grids = [jax.ShapeDtypeStruct(LARGE[shape], jnp.float32)] * count
    alone = autopar.plan(step, *grids, cluster="1xh100")
    plan = autopar.plan(step, *grids, cluster="8xh100", mesh={"x": 8})
    assert plan.peak_memory_bytes <= 1.1 * alone.peak_memory_bytes / 8
    moved = sum(row.size_bytes * row.runs for row in plan.collectives)
    assert moved <= 4 * np.prod(LARGE[shape]) / 16
