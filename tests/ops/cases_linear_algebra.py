"""Cases of decompositions, solvers, transforms and products of groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jax import lax
from jax.lax import linalg

from tests.ops.cases import bools, case, floats, ints

_MATRICES = floats((4, 3, 3))
_TALL = floats((2, 2, 4, 3))


def positive(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of symmetric positive definite matrices made from its argument."""
    return lambda x, *rest: function(x @ x.mT + 4 * jnp.eye(x.shape[-1], dtype=x.dtype), *rest)


def lower(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of lower triangular matrices made from its argument."""
    return lambda x, *rest: function(jnp.tril(x) + 4 * jnp.eye(x.shape[-1], dtype=x.dtype), *rest)


def tridiagonal_solve(x: Any, d: Any, b: Any) -> Any:
    return linalg.tridiagonal_solve(x.at[..., 0].set(0), d + 4, x.at[..., -1].set(0), b)


DECOMPOSITIONS = [
    case("cholesky", positive(partial(linalg.cholesky, symmetrize_input=False)), _MATRICES),
    case("cholesky", positive(linalg.cholesky), floats((2, 4, 2, 2)), name="two batch dims"),
    case("cholesky", positive(linalg.cholesky), floats((4, 4)), name="one matrix"),
    case("cholesky_update", positive(linalg.cholesky_update), floats((4, 4)), floats((4,))),
    case("eig", linalg.eig, _MATRICES),
    case("eig", partial(linalg.eig, compute_right_eigenvectors=False), _MATRICES, name="values"),
    case("eigh", linalg.eigh, _MATRICES),
    case(
        "eigh",
        partial(linalg.eigh, symmetrize_input=False),
        floats((2, 4, 2, 2), "complex64"),
        name="complex",
    ),
    case(
        "geqp3",
        partial(jax.scipy.linalg.qr_multiply, pivoting=True),
        floats((4, 3)),
        floats((4, 4)),
    ),
    case("geqrf", partial(jnp.linalg.qr, mode="raw"), _TALL),
    case("hessenberg", linalg.hessenberg, _MATRICES),
    case("householder_product", lambda x: linalg.householder_product(x, x[..., 0, :] + 1), _TALL),
    case("lu", linalg.lu, _MATRICES),
    case("lu", linalg.lu, _TALL, name="tall"),
    case(
        "lu_pivots_to_permutation",
        lambda p: linalg.lu_pivots_to_permutation(p, 4),
        ints((4, 2), 4, 2),
    ),
    case("ormqr", lambda x, y: linalg.ormqr(x, x[..., 0, :] + 1, y), _TALL, floats((2, 2, 4, 8))),
    case("qr", linalg.qr, _TALL),
    case("qr", partial(linalg.qr, full_matrices=False, pivoting=True), _TALL, name="pivoting"),
    case("schur", linalg.schur, _MATRICES),
    case("schur", partial(linalg.schur, compute_schur_vectors=False), _MATRICES, name="values"),
    case("svd", linalg.svd, _TALL),
    case("svd", partial(linalg.svd, compute_uv=False), floats((8, 3, 2)), name="values"),
    case(
        "symmetric_product",
        partial(linalg.symmetric_product, alpha=2.0),
        _TALL,
        floats((2, 2, 4, 4)),
    ),
    case(
        "symmetric_product",
        partial(linalg.symmetric_product, beta=0.5),
        floats((3, 4)),
        floats((3, 3)),
        name="one",
    ),
    case(
        "triangular_solve",
        lower(partial(linalg.triangular_solve, lower=True, left_side=True)),
        *[floats((2, 4, 4))] * 2,
    ),
    case(
        "triangular_solve",
        lower(partial(linalg.triangular_solve, lower=True)),
        floats((4, 4)),
        floats((8, 4)),
        name="right",
    ),
    case(
        "triangular_solve",
        lower(
            partial(
                linalg.triangular_solve,
                lower=True,
                left_side=True,
                transpose_a=True,
                unit_diagonal=True,
            )
        ),
        *(floats((4, 2, 2), "complex64"), floats((4, 2, 8), "complex64")),
        name="transposed complex",
    ),
    case("tridiagonal", positive(partial(linalg.tridiagonal, lower=True)), _MATRICES),
    case("tridiagonal_solve", tridiagonal_solve, floats((4, 3)), floats((4, 3)), floats((4, 3, 8))),
]

# --- transforms ----------------------------------------------------------------------------------------------------
TRANSFORMS = [
    case("fft", jnp.fft.fft, floats((4, 8), "complex64")),
    case("fft", jnp.fft.ifft, floats((8, 2, 4), "complex64"), name="inverse"),
    case("fft", jnp.fft.rfft2, floats((2, 4, 4, 6)), name="real, two dims"),
    case("fft", partial(jnp.fft.irfft, n=6), floats((4, 4), "complex64"), name="to real"),
    case("fft", jnp.fft.fft2, floats((2, 4, 8), "complex64"), name="two dims"),
    case("fft", jnp.fft.ifftn, floats((4, 8, 4), "complex64"), name="three dims"),
    case("fft", jnp.fft.fftn, floats((4, 6, 5), "complex64"), name="three dims, uneven ones"),
    case("fft", jnp.fft.rfftn, floats((4, 8, 6)), name="real, three dims"),
    case("fft", jnp.fft.rfftn, floats((8, 4, 5)), name="real, three dims, uneven one"),
    case("fft", jnp.fft.irfftn, floats((4, 8, 4), "complex64"), name="to real, three dims"),
    case(
        "fft",
        partial(jnp.fft.irfft2, s=(4, 7)),
        floats((2, 4, 4), "complex64"),
        name="to real, two dims",
    ),
    case("fft", partial(jnp.fft.fft, axis=0), floats((8, 4), "complex64"), name="first axis"),
    case("approx_top_k", lambda x: lax.approx_max_k(x, 2), floats((4, 16))),
    case(
        "approx_top_k",
        lambda x: lax.approx_min_k(x, 4, reduction_dimension=0),
        floats((16, 8)),
        name="smallest",
    ),
]

# --- products of groups --------------------------------------------------------------------------------------------
Numbers = lax.RaggedDotDimensionNumbers


def sizes_of(counts: Any, rows: int) -> Any:
    """Sizes of as many groups that make up at most `rows` rows: from random numbers."""
    return jnp.diff(jnp.sort(counts % (rows + 1), axis=-1), prepend=0, axis=-1)


def ragged(numbers: Numbers, rows: int) -> Callable[..., Any]:
    return lambda x, y, counts: lax.ragged_dot_general(x, y, sizes_of(counts, rows), numbers)


_KEPT = Numbers((((1,), (1,)), ((), ())), (0,), (0,))
_SUMMED = Numbers((((0,), (0,)), ((), ())), (0,), ())
_BATCHED = Numbers((((2,), (2,)), ((0,), (1,))), (1,), (0,))
_ROWS_ARE_BATCH = Numbers((((2,), (1,)), ((0,), (0,))), (0,), ())
_FEW, _MANY = ints((2,), 99), ints((4,), 99)
GROUPS = [
    case("ragged_dot_general", ragged(_KEPT, 8), floats((8, 4)), floats((4, 4, 2)), _MANY),
    case(
        "ragged_dot_general",
        ragged(_KEPT, 8),
        bools((8, 4)),
        bools((4, 4, 2)),
        _MANY,
        name="booleans",
    ),
    case(
        "ragged_dot_general",
        ragged(_KEPT, 4),
        floats((4, 2)),
        floats((4, 2, 4)),
        _MANY,
        name="empty groups",
    ),
    case(
        "ragged_dot_general",
        ragged(_SUMMED, 8),
        floats((8, 4)),
        floats((8, 2)),
        _MANY,
        name="rows summed up",
    ),
    case(
        "ragged_dot_general",
        ragged(_BATCHED, 4),
        floats((2, 4, 4)),
        floats((2, 2, 4, 4)),
        _FEW,
        name="batch",
    ),
    case(
        "ragged_dot_general",
        ragged(_BATCHED, 4),
        *(floats((2, 4, 4)), floats((4, 2, 4, 4)), ints((2, 4), 99)),
        name="sizes for each of a batch",
    ),
    case(
        "ragged_dot_general",
        ragged(_ROWS_ARE_BATCH, 4),
        *(floats((4, 2, 4)), floats((4, 4, 2)), _FEW),
        name="rows are batch",
    ),
    case(
        "ragged_dot_general",
        jax.grad(lambda y, x, counts: lax.ragged_dot(x, y, sizes_of(counts, 8)).sum()),
        *(floats((4, 4, 2)), floats((8, 4)), _MANY),
        name="gradient",
    ),
]


def scaled(numbers: Any = (((1,), (1,)), ((), ()))) -> Callable[..., Any]:
    return lambda x, y, s, t: lax.scaled_dot(
        x, y, lhs_scale=s, rhs_scale=t, dimension_numbers=numbers
    )


_SCALED = [floats((shape), "bfloat16") for shape in ((4, 8), (2, 8), (4, 4), (2, 4))]
SCALED = [
    case("scaled_dot", scaled(), *_SCALED),
    case("scaled_dot", scaled(), *_SCALED[:3], floats((2, 1), "bfloat16"), name="one scale"),
    case(
        "scaled_dot", scaled(), *_SCALED[:3], floats((2, 2), "bfloat16"), name="blocks that differ"
    ),
    case(
        "scaled_dot",
        lambda x, y, s: lax.scaled_dot(
            x, y, lhs_scale=s, dimension_numbers=(((1,), (1,)), ((), ()))
        ),
        *_SCALED[:3],
        name="unscaled rhs",
    ),
]

LINEAR_ALGEBRA = [*DECOMPOSITIONS, *TRANSFORMS, *GROUPS, *SCALED]
