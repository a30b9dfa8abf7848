"""Operations of matrices: those of the batch add up, and orders of magnitude are those of the textbook."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from autopar.core.graph import OpNode
from autopar.ops.traits import is_fusible, one_per_element, traits_of, work_flops
from autopar.trace import trace
from tests.ops.build import operator_of
from tests.ops.cases_linear_algebra import LINEAR_ALGEBRA

N = 64


def operator(fn: object, *shapes: tuple[int, ...], kind: str) -> OpNode:
    graph = trace(fn, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).graph
    return next(op for op in graph.ops if op.kind == kind)


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("case", LINEAR_ALGEBRA, ids=[case.name for case in LINEAR_ALGEBRA])
def test_every_case_has_work_and_is_an_operator_of_its_own(case: object) -> None:
    op = operator_of(case)
    if traits_of(op.kind).flops is not one_per_element:
        assert work_flops(op) > 0
        assert not is_fusible(op)


@pytest.mark.parametrize(
    ("kind", "fn", "flops"),
    [
        ("cholesky", jnp.linalg.cholesky, N**3 / 3),
        ("lu", jax.lax.linalg.lu, 2 * N**3 / 3),
        ("eigh", jnp.linalg.eigh, 9 * N**3),
        ("qr", jnp.linalg.qr, 8 * N**3 / 3),
        ("fft", jnp.fft.fft, 5 * N * N * 6),
    ],
)
def test_the_work_of_a_batch_is_that_of_its_matrices(kind: str, fn: object, flops: float) -> None:
    assert work_flops(operator(fn, (N, N), kind=kind)) == pytest.approx(flops)
    assert work_flops(operator(fn, (3, N, N), kind=kind)) == pytest.approx(3 * flops)


def test_a_product_of_groups_works_as_much_as_one_of_all_rows() -> None:
    def grouped(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.ragged_dot(x, y, jnp.array([3, 5, 0, 8]))

    op = operator(grouped, (16, 8), (4, 8, 32), kind="ragged_dot_general")
    plain = operator(jnp.matmul, (16, 8), (8, 32), kind="dot_general")
    assert work_flops(op) == work_flops(plain) == 2 * 16 * 8 * 32
