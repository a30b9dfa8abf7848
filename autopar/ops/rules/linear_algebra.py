"""Rules of matrix decompositions and solvers: a matrix stays whole, a batch of them is divided."""

from __future__ import annotations

from math import prod

from autopar.core.graph import OpNode
from autopar.ops.rules.factor_rule import Factor, FactorRule
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import register_whole, rule_for
from autopar.ops.traits import declare

# How many trailing dims of each operand and of each result belong to one matrix (2) or one vector (1). A
# decomposition may leave out its last results.
_CORE: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "cholesky": ((2,), (2,)),
    "eig": ((2,), (1, 2, 2)),
    "eigh": ((2,), (2, 1)),
    "geqp3": ((2, 1), (2, 1, 1)),
    "geqrf": ((2,), (2, 1)),
    "hessenberg": ((2,), (2, 1)),
    "householder_product": ((2, 1), (2,)),
    "lu": ((2,), (2, 1, 1)),
    "lu_pivots_to_permutation": ((1,), (1,)),
    "ormqr": ((2, 1, 2), (2,)),
    "qr": ((2,), (2, 2, 1)),
    "schur": ((2,), (2, 2)),
    "svd": ((2,), (1, 2, 2)),
    "tridiagonal": ((2,), (2, 1, 1, 1)),
}

register_whole(
    "cholesky_update",
    reason="one matrix and one vector, each element of the result needs all of both",
)


def _batched(name: str, ndim: int, core: int) -> list[Factor]:
    """The factors of a tensor: shared batch dims "b0", "b1", ..., then `core` dims of its own."""
    return [f"b{d}" for d in range(ndim - core)] + [f"{name}{d}" for d in range(core)]


@rule_for(*_CORE)
def decomposition(op: OpNode) -> FactorRule:
    """outs[b..., rows, columns] = f(ins[b..., rows, columns]), matrix by matrix; rows and columns are frozen."""
    in_cores, out_cores = _CORE[op.kind]
    ins = [
        _batched(f"i{n}.", t.ndim, core)
        for n, (t, core) in enumerate(zip(op.ins, in_cores, strict=True))
    ]
    outs = [
        _batched(f"o{n}.", t.ndim, core)
        for n, (t, core) in enumerate(zip(op.outs, out_cores, strict=False))
    ]
    frozen = {f for dims in (*ins, *outs) for f in dims if f[0] != "b"}
    return FactorRule.of(op, ins=ins, outs=outs, frozen=frozen)


@rule_for("triangular_solve")
def triangular_solve(op: OpNode) -> FactorRule:
    """a[b..., m, m] x[b..., m, n] = rhs[b..., m, n], column by column; m is frozen; linear in rhs.

    Right-sided: x[b..., n, m] a[b..., m, m], row by row.
    """
    batch = _batched("", op.ins[0].ndim, 2)[:-2]
    known = [*batch, "m", "n"] if op.params["left_side"] else [*batch, "n", "m"]
    return FactorRule.of(
        op,
        ins=[[*batch, "p", "q"], known],
        outs=[known],
        frozen=["m", "p", "q"],
        linear=linear_sets(op, (1,)),
    )


@rule_for("tridiagonal_solve")
def tridiagonal_solve(op: OpNode) -> FactorRule:
    """T x[b..., m, n] = rhs[b..., m, n], T of three diagonals [b..., m], column by column; m frozen; linear in rhs."""
    batch = _batched("", op.ins[3].ndim, 2)[:-2]
    known = [*batch, "m", "n"]
    return FactorRule.of(
        op,
        ins=[[*batch, "m"]] * 3 + [known],
        outs=[known],
        frozen=["m"],
        linear=linear_sets(op, (3,)),
    )


@rule_for("symmetric_product")
def symmetric_product(op: OpNode) -> FactorRule:
    """out[b..., m, m] = alpha a[b..., m, k] a[b..., m, k]^T + beta c[b..., m, m]; m frozen.

    A split k leaves out unreduced, and takes a c that is unreduced too.
    """
    batch = _batched("", op.ins[0].ndim, 2)[:-2]
    square = [*batch, "m", "n"]
    return FactorRule.of(
        op,
        ins=[[*batch, "p", "k"], square],
        outs=[square],
        reduced={"k": "sum"},
        carried={"k": (1,)},
        frozen=["m", "n", "p"],
    )


# Floating-point operations: leading terms only, and complex numbers count as real ones.
# Reference: Golub and Van Loan, Matrix Computations, 4th edition.

_PER_CUBE = {
    "cholesky": 1 / 3,
    "eig": 25.0,
    "eigh": 9.0,
    "hessenberg": 10 / 3,
    "schur": 25.0,
    "tridiagonal": 4 / 3,
}


def _square_flops(op: OpNode) -> float:
    """A constant times n^3 for each matrix[n, n]."""
    *batch, _, n = op.ins[0].shape
    return prod(batch) * _PER_CUBE[op.kind] * n**3


def _lu_flops(op: OpNode) -> float:
    """s^2 (l - s / 3) for each matrix of sides s <= l."""
    *batch, m, n = op.ins[0].shape
    short, long = sorted((m, n))
    return prod(batch) * short**2 * (long - short / 3)


def _orthogonal_flops(op: OpNode) -> float:
    """2 s^2 (l - s / 3) for each matrix of sides s <= l; twice that where the orthogonal factor is formed too."""
    return _lu_flops(op) * (4 if op.kind == "qr" else 2)


def _svd_flops(op: OpNode) -> float:
    """4 l^2 s + 22 s^3 for each matrix of sides s <= l, or 2 l s^2 + 2 s^3 for the values alone."""
    *batch, m, n = op.ins[0].shape
    short, long = sorted((m, n))
    values = 2 * long * short**2 + 2 * short**3
    return prod(batch) * (4 * long**2 * short + 22 * short**3 if len(op.outs) > 1 else values)


def _reflections_flops(op: OpNode) -> float:
    """4 |c| times the number of reflections."""
    return 4.0 * prod(op.ins[2].shape) * op.ins[1].shape[-1]


def _triangular_solve_flops(op: OpNode) -> float:
    """|out| n for matrices [n, n]."""
    return float(prod(op.outs[0].shape) * op.ins[0].shape[-1])


def _tridiagonal_solve_flops(op: OpNode) -> float:
    """8 |out|."""
    return 8.0 * prod(op.outs[0].shape)


def _symmetric_product_flops(op: OpNode) -> float:
    """2 |out| k."""
    return 2.0 * prod(op.outs[0].shape) * op.ins[0].shape[-1]


declare(*_PER_CUBE, is_fusible=False, flops=_square_flops)
declare("geqp3", "geqrf", "householder_product", "qr", is_fusible=False, flops=_orthogonal_flops)
declare("lu", is_fusible=False, flops=_lu_flops)
declare("ormqr", is_fusible=False, flops=_reflections_flops)
declare("svd", is_fusible=False, flops=_svd_flops)
declare("symmetric_product", is_fusible=False, flops=_symmetric_product_flops)
declare("triangular_solve", is_fusible=False, flops=_triangular_solve_flops)
declare("tridiagonal_solve", is_fusible=False, flops=_tridiagonal_solve_flops)
