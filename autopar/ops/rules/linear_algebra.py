"""Rules of matrix decompositions and solvers: a matrix stays whole, a batch of them is divided."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.ops.rules.factor_rule import Factor, FactorRule
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import register_whole, rule_for

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

register_whole("cholesky_update", reason="one matrix and one vector, each element of the result needs all of both")


def _batched(name: str, ndim: int, core: int) -> list[Factor]:
    """The factors of a tensor: shared batch dims "b0", "b1", ..., then `core` dims of its own."""
    return [f"b{d}" for d in range(ndim - core)] + [f"{name}{d}" for d in range(core)]


@rule_for(*_CORE)
def decomposition(op: OpNode) -> FactorRule:
    """outs[b..., rows, columns] = f(ins[b..., rows, columns]), matrix by matrix; rows and columns are frozen."""
    in_cores, out_cores = _CORE[op.kind]
    ins = [_batched(f"i{n}.", t.ndim, core) for n, (t, core) in enumerate(zip(op.ins, in_cores, strict=True))]
    outs = [_batched(f"o{n}.", t.ndim, core) for n, (t, core) in enumerate(zip(op.outs, out_cores, strict=False))]
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
        op, ins=[[*batch, "m"]] * 3 + [known], outs=[known], frozen=["m"], linear=linear_sets(op, (3,))
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
