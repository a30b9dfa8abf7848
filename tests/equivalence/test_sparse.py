"""Sparse matrices are what their products are lowered to: split by entries or columns, and reduced once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

import autopar
from autopar.trace import trace
from tests.equivalence.cases import Case
from tests.equivalence.check import check
from tests.equivalence.test_solver_plans import slow_devices

ROWS, COLUMNS, ENTRIES, WIDTH = 16, 32, 64, 8
_RNG = np.random.default_rng(0)
_FLAT = np.sort(_RNG.choice(ROWS * COLUMNS, ENTRIES, replace=False))
AT = jnp.asarray(np.stack([_FLAT // COLUMNS, _FLAT % COLUMNS], 1), jnp.int32)
POINTERS = jnp.asarray(np.searchsorted(_FLAT // COLUMNS, np.arange(ROWS + 1)), jnp.int32)
VALUES = jnp.asarray(_RNG.uniform(-1, 1, ENTRIES), jnp.float32)
DENSE = jnp.asarray(_RNG.uniform(-1, 1, (COLUMNS, WIDTH)), jnp.float32)


def coo(values: Any, at: Any) -> Any:
    return sparse.BCOO(
        (values, at), shape=(ROWS, COLUMNS), indices_sorted=True, unique_indices=True
    )


def csr(values: Any, columns: Any, pointers: Any) -> Any:
    return sparse.BCSR((values, columns, pointers), shape=(ROWS, COLUMNS))


def segment_sum(values: Any, at: Any, x: Any) -> Any:
    return jax.ops.segment_sum(
        values[:, None] * x[at[:, 1]], at[:, 0], ROWS, indices_are_sorted=True
    )


def gradients(values: Any, at: Any, x: Any) -> Any:
    return jax.grad(lambda v, x: jnp.sin(coo(v, at) @ x).sum(), (0, 1))(values, x)


def power(values: Any, at: Any, x: Any) -> Any:
    square = sparse.BCOO((values, at % ROWS), shape=(ROWS, ROWS))
    return jax.lax.fori_loop(0, 3, lambda _, y: square @ y / 2, x[:ROWS])


Product = tuple[Callable[..., Any], tuple[Any, ...]]
PRODUCTS: dict[str, Product] = {
    "matrix": (lambda v, at, x: coo(v, at) @ x, (VALUES, AT, DENSE)),
    "vector": (lambda v, at, x: coo(v, at) @ x[:, 0], (VALUES, AT, DENSE)),
    "from the right": (lambda v, at, x: x.T @ coo(v, at).T, (VALUES, AT, DENSE)),
    "gradients": (gradients, (VALUES, AT, DENSE)),
    "in a loop": (power, (VALUES, AT, DENSE)),
    "segment sum": (segment_sum, (VALUES, AT, DENSE)),
    "compressed rows": (lambda v, at, p, x: csr(v, at[:, 1], p) @ x, (VALUES, AT, POINTERS, DENSE)),
    "two sparse ones": (lambda v, at: (coo(v, at) @ coo(v, at).T).todense(), (VALUES, AT)),
    "scaled, summed and dense again": (
        lambda v, at: (
            sparse.sparsify(lambda m: (m * 2.0).sum(0))(coo(v, at)).todense(),
            coo(v, at).todense(),
        ),
        (VALUES, AT),
    ),
    "taken out of a dense one": (
        lambda v, at, x: coo(v, at) @ sparse.bcoo_fromdense(x, nse=COLUMNS * WIDTH),
        (VALUES, AT, DENSE),
    ),
}


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_split_and_compute_the_same(name: str) -> None:
    function, args = PRODUCTS[name]
    assert not [
        op.kind
        for op in trace(function, args).graph.ops
        if op.kind.startswith(("bcoo", "bcsr", "coo", "csr"))
    ]
    plan = autopar.plan(function, *args, cluster=slow_devices(), mesh={"x": 8}, strict=True)
    check(Case(function, args, "float32"), plan.program())


@pytest.mark.parametrize("name", ["vector", "segment sum"])
def test_entries_are_split_and_the_result_is_reduced_once(name: str) -> None:
    """Many more entries than rows, and nothing else that could be split."""
    shapes = {
        "v": ((1 << 22,), jnp.float32),
        "at": ((1 << 22, 2), jnp.int32),
        "x": ((COLUMNS, 1), jnp.float32),
    }
    args = [jax.ShapeDtypeStruct(*shape) for shape in shapes.values()]
    plan = autopar.plan(PRODUCTS[name][0], *args, cluster="8xh100", mesh={"x": 8}, strict=True)
    assert [row.kind for row in plan.collectives] == ["all_reduce"]
    assert plan.collectives[0].size_bytes == 4 * ROWS
    assert [placement.dims for placement in plan.placements.values()][:2] == [
        (("x",),),
        (("x",), ()),
    ]
