"""What a loop carries and makes anew in every round, told from what it only adds to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autopar
from autopar.core.dataflow import dataflow
from autopar.core.mesh import DeviceMesh
from autopar.cost import assemble, tensor_edges
from autopar.cost.pricing import Roofline
from autopar.ops.recurrences import recurring, written_out
from autopar.search.mesh_context import MeshContext
from autopar.solve.problem.factored_matrix import entries_of
from autopar.trace import trace
from cost_models import load_cluster

X = jnp.ones((4, 4))


def positions(step: Callable[..., Any], start: Any) -> set[int]:
    """The positions of what recurs in a scan of `step`."""
    graph = trace(lambda s, xs: lax.scan(step, s, xs)[0], (start, jnp.ones((3, 4, 4)))).graph
    return {int(graph.ops[n].params["position"]) for n in recurring(graph)}  # type: ignore[call-overload]


CASES: dict[str, tuple[Callable[..., Any], Any, set[int]]] = {
    "a sum": (lambda c, x: (c + x @ x, None), X, set()),
    "a sum, moved and cast": (
        lambda c, x: ((c.T.astype("bfloat16") - x).astype("float32"), None),
        X,
        set(),
    ),
    "a sum of what is chosen": (lambda c, x: (jnp.where(x > 0, c, c + x), None), X, set()),
    "a part that is written": (lambda c, x: (c.at[1].add(x[0]), None), X, set()),
    "a product": (lambda c, x: (x @ c, None), X, {0}),
    "a product beside a sum": (lambda c, x: ((x @ c[0], c[1] + c[0]), None), (X, X), {0}),
    "two that take turns, by sums": (lambda c, x: ((c[1], c[0] + x), None), (X, X), set()),
    "two that take turns, by a product": (lambda c, x: ((c[1], x @ c[0]), None), (X, X), {0, 1}),
    "a product of a sum of itself": (lambda c, x: ((c[1] + x, c[0] * 2), None), (X, X), {0, 1}),
    "made of another that recurs": (
        lambda c, x: ((jnp.sin(c[0]), c[1] + c[0] @ x), None),
        (X, X),
        {0},
    ),
    "a sum in a loop inside": (
        lambda c, x: (lax.fori_loop(0, 3, lambda _, d: d + x, c), None),
        X,
        set(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_recurs(name: str) -> None:
    step, start, expected = CASES[name]
    assert positions(step, start) == expected


def test_a_recurrence_in_a_loop_inside_is_one_of_both() -> None:
    def step(c: Any, x: Any) -> Any:
        return lax.fori_loop(0, 3, lambda _, d: jnp.tanh(d) + x, c), None

    graph = trace(lambda s, xs: lax.scan(step, s, xs)[0], (X, jnp.ones((3, 4, 4)))).graph
    assert len(recurring(graph)) == len(
        [n for n in graph.loop_carries.values() if graph.ops[n].ins[0].shape]
    )


def _likelihood(params: Any, ys: Any) -> Any:
    """Of a Kalman filter: what its gradient carries backwards is of terms that cancel one another."""
    f, h, q, r = params

    def step(carry: Any, y: Any) -> Any:
        total, mean, cov = carry
        s = r + h @ cov @ h.T
        root = jnp.linalg.cholesky(s)
        gain = jax.scipy.linalg.cho_solve((root, True), h @ cov).T
        off = y - h @ mean
        total = total - 0.5 * off @ jax.scipy.linalg.cho_solve((root, True), off)
        total = total - jnp.log(jnp.diag(root)).sum()
        cov = cov - gain @ s @ gain.T
        return (total, f @ (mean + gain @ off), f @ ((cov + cov.T) / 2) @ f.T + q), None

    return lax.scan(step, (0.0, jnp.zeros(3), jnp.eye(3)), ys)[0][0]


def test_the_gradient_of_a_filter_does_not_fall_apart() -> None:
    """120 rounds, where latencies are most of the cost: once it was off by 1e13."""

    def gradient(params: Any, ys: Any) -> Any:
        return jax.grad(lambda p: -jax.vmap(lambda y: _likelihood(p, y))(ys).mean())(params)

    key = jax.random.key(0)
    params = 0.99 * jnp.eye(3), jax.random.normal(key, (2, 3)), 0.1 * jnp.eye(3), 0.1 * jnp.eye(2)
    ys = jax.random.normal(jax.random.key(1), (64, 120, 2))
    found = autopar.compile(gradient, cluster="2x4xcpu-1gbit")(params, ys)
    for mine, plain in zip(found, jax.jit(gradient)(params, ys), strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-3, atol=1e-4 * float(jnp.abs(plain).max()))


def test_layers_that_are_written_out_are_told_from_sums() -> None:
    def layers(x: Any, w: Any) -> Any:
        total = jnp.zeros_like(x)
        for n in range(12):
            x = jnp.tanh(x @ w) + n
            total = total + x
        return x, total

    graph = trace(layers, (X, X)).graph
    again = written_out(graph)
    assert again
    made = {t.id: op.kind for op in graph.ops for t in op.outs}
    assert {made[t] for t in again} >= {"dot_general", "tanh"}
    assert len(again) <= 3 * 11
    assert graph.outputs[1].id not in again


def test_what_was_reduced_in_them_is_no_part_of_a_sum_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the ways between placements those are not there, and all others are."""

    def layers(x: Any, w: Any) -> Any:
        for _ in range(12):
            x = jnp.tanh(x @ w) @ w + x
        return x

    def ways() -> int:
        graph = trace(layers, (jnp.ones((8, 8)), jnp.ones((8, 8)))).graph
        mesh = DeviceMesh.of({"x": 2})
        cluster = load_cluster("cpu8")
        ground = MeshContext(
            graph, dataflow(graph), mesh, lambda graph, mesh: Roofline(graph, mesh, cluster)
        )
        matrices, which = ground.problem((), None).matrices
        finite = [int(np.isfinite(entries_of(matrix)).sum()) for matrix in matrices]
        return sum(finite[n] for n in which)

    barred = ways()
    for module in (assemble, tensor_edges):
        monkeypatch.setattr(module, "written_out", lambda _: frozenset())
    assert barred < ways()


def test_few_layers_are_left_alone() -> None:
    graph = trace(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w), (X, X)).graph
    assert not written_out(graph)
