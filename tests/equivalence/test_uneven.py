"""Plans of padded graphs, drawn at random: whatever is split, results are those of plain JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct as Struct

import autopar
from autopar.trace import trace
from benchmarks.models import gpt
from tests.equivalence.cases import MESHES, Case
from tests.equivalence.check import check
from tests.equivalence.draw import local_plan, uniform_plan
from tests.models.check import free_latency
from tests.quick_some import diagonal
from tests.trace.test_padding import array, heat, loss


class Padded(Case):
    """A case whose uneven dims are padded for eight devices."""

    @property
    def traced(self) -> Any:
        found = self.__dict__.get("_padded")
        if found is None:
            sizes = {13: 16, 14: 16, 15: 16, 29: 32, 30: 32, 31: 32}
            found = self.__dict__["_padded"] = trace(self.fn, self.args, padding=sizes)
        return found


def step(params: Any, ids: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, ids))


def attention(x: Any, w: Any) -> Any:
    """The gradient of softmax attention over 15 heads and 13 places."""

    def energy(w: Any) -> Any:
        q, k, v = jnp.moveaxis((x @ w).reshape(14, 13, 3, 15, 4), 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        masked = jnp.where(jnp.tril(jnp.ones((13, 13), bool)), scores, -jnp.inf)
        return (jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(masked), v) ** 2).mean()

    return jax.grad(energy)(w)


def cases() -> dict[str, Padded]:
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 13, size=(14, 8)))
    params = {"table": array(13, 16), "w": array(16, 16, seed=1)}
    return {
        "tied embedding": Padded(step, (params, ids), "float32"),
        "heat": Padded(lambda u: heat(heat(u)), (array(16, 32),), "float32"),
        "uneven heat": Padded(lambda u: heat(u), (array(31, 15),), "float32"),
        "gradient of heat": Padded(
            jax.grad(lambda u: (heat(heat(u)) ** 2).sum()), (array(16, 30),), "float32"
        ),
        "rolls": Padded(
            lambda u: jnp.roll(u, 1, 0) + jnp.roll(u, -3, 1) - u[::-1], (array(15, 30),), "float32"
        ),
        "attention": Padded(attention, (array(14, 13, 8), array(8, 180, seed=1)), "float32"),
    }


CASES = cases()


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("name", "mesh"), diagonal(CASES, MESHES))
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]
)
def test_a_random_plan_of_a_padded_graph_computes_the_same(name: str, mesh: str, seed: int) -> None:
    case = CASES[name]
    space = case.space(MESHES[mesh])
    check(
        case,
        case.program(local_plan(case, space, seed) if seed % 2 == 0 else uniform_plan(space, seed)),
    )


@pytest.mark.parametrize("shape", [(1 << 28,), (16384, 16384), (512, 512, 512)])
def test_a_step_by_slices_is_split(shape: tuple[int, ...]) -> None:
    def around(u: Any) -> Any:
        inside = (slice(1, -1),) * u.ndim
        ends = [(dim, end) for dim in range(u.ndim) for end in (slice(2, None), slice(None, -2))]
        total = sum(u[(*inside[:dim], end, *inside[dim + 1 :])] for dim, end in ends)
        return u.at[inside].add(0.1 * (total - 2 * u.ndim * u[inside]))

    plan = autopar.plan(around, Struct(shape, np.float32), cluster="8xh100", donate_argnums=0)
    assert plan.peak_memory_bytes <= 1.1 * 2 * 4 * np.prod(shape) / 8


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "mesh"), [(12, "8"), (25, "2x4"), (25, "2x2x2")])
def test_a_language_model_of_uneven_sizes_trains_as_in_plain_jax(heads: int, mesh: str) -> None:
    """50257 words, 30 rows, dropout; on devices where splitting always pays, so that the graph is a padded one."""
    model = gpt(2, 4 * heads, heads, vocab=50257, sequence=16, batch=30)
    step = autopar.compile(model.step(), cluster=free_latency(), mesh=dict(MESHES[mesh].axes))
    expected, found = (fn(model.state, *model.batch) for fn in (jax.jit(model.step()), step))
    (plan,) = step.plans
    assert dict(plan.bound.traced.graph.padding).items() >= {30: 32, 50257: 50264}.items()
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)


def test_the_report_says_what_is_padded_and_what_that_costs() -> None:
    def scores(w: Any, x: Any) -> Any:
        return jax.nn.log_softmax(jnp.tanh(x) @ w).sum(0)

    def planned(words: int, rows: int) -> autopar.Plan:
        args = Struct((768, words), np.float32), Struct((rows, 768), np.float32)
        return autopar.plan(scores, *args, cluster="8xh100", mesh={"a": 8})

    plan = planned(50257, 30 * 1023)
    assert 0 < plan.summary.padding_time_s < 0.2 * plan.summary.compute_time_s
    (line,) = [line for line in plan.report().splitlines() if line.startswith(" padded")]
    assert line.split()[:8] == ["padded", "30690", "to", "30696,", "50257", "to", "50264:", "at"]
    asked = 2.0 * 768 * 50257 * 30 * 1023
    assert plan.summary.throughput.product_flops == pytest.approx(asked, rel=1e-9)
    even = planned(50264, 30696)
    assert " padded" not in even.report()
    assert even.summary.padding_time_s == 0
