"""The floating-point operations of decompositions, solvers, transforms and products of groups.

Reference: Golub and Van Loan, Matrix Computations, 4th edition. Leading terms only; complex numbers count as real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod

from autopar.core.graph import OpNode

_PER_CUBE = {
    "cholesky": 1 / 3,
    "eig": 25.0,
    "eigh": 9.0,
    "hessenberg": 10 / 3,
    "schur": 25.0,
    "tridiagonal": 4 / 3,
}


def _square(op: OpNode) -> float:
    """A constant times n^3 for each matrix[n, n]."""
    *batch, _, n = op.ins[0].shape
    return prod(batch) * _PER_CUBE[op.kind] * n**3


def _lu(op: OpNode) -> float:
    """s^2 (l - s / 3) for each matrix of sides s <= l."""
    *batch, m, n = op.ins[0].shape
    short, long = sorted((m, n))
    return prod(batch) * short**2 * (long - short / 3)


def _orthogonal(op: OpNode) -> float:
    """2 s^2 (l - s / 3) for each matrix of sides s <= l; twice that where the orthogonal factor is formed too."""
    return _lu(op) * (4 if op.kind == "qr" else 2)


def _svd(op: OpNode) -> float:
    """4 l^2 s + 22 s^3 for each matrix of sides s <= l, or 2 l s^2 + 2 s^3 for the values alone."""
    *batch, m, n = op.ins[0].shape
    short, long = sorted((m, n))
    values = 2 * long * short**2 + 2 * short**3
    return prod(batch) * (4 * long**2 * short + 22 * short**3 if len(op.outs) > 1 else values)


def _reflections(op: OpNode) -> float:
    """4 |c| times the number of reflections."""
    return 4.0 * prod(op.ins[2].shape) * op.ins[1].shape[-1]


def _triangular_solve(op: OpNode) -> float:
    """|out| n for matrices [n, n]."""
    return float(prod(op.outs[0].shape) * op.ins[0].shape[-1])


def _tridiagonal_solve(op: OpNode) -> float:
    """8 |out|."""
    return 8.0 * prod(op.outs[0].shape)


def _symmetric_product(op: OpNode) -> float:
    """2 |out| k."""
    return 2.0 * prod(op.outs[0].shape) * op.ins[0].shape[-1]


def _fft(op: OpNode) -> float:
    """5 N log2 n for N elements, n of them transformed together."""
    larger = max(op.ins[0].shape, op.outs[0].shape, key=prod)
    transformed = prod(op.params["fft_lengths"])
    return 5.0 * prod(larger) * log2(max(transformed, 2))


def _ragged_dot_general(op: OpNode) -> float:
    """2 |batch| |r| |k| |n|: every row is multiplied once, whatever its group."""
    params = op.params["ragged_dot_dimension_numbers"]
    (_, rhs_k), (_, rhs_b) = params["dot_dimension_numbers"]
    apart = {*rhs_k, *rhs_b, *params["rhs_group_dimensions"]}
    return 2.0 * prod(op.ins[0].shape) * prod(size for d, size in enumerate(op.ins[1].shape) if d not in apart)


MATRIX_FLOPS: dict[str, Callable[[OpNode], float]] = {
    **dict.fromkeys(_PER_CUBE, _square),
    **dict.fromkeys(("geqp3", "geqrf", "householder_product", "qr"), _orthogonal),
    "fft": _fft,
    "lu": _lu,
    "ormqr": _reflections,
    "ragged_dot_general": _ragged_dot_general,
    "svd": _svd,
    "symmetric_product": _symmetric_product,
    "triangular_solve": _triangular_solve,
    "tridiagonal_solve": _tridiagonal_solve,
}
"""The operations of the whole operator, by primitive."""
