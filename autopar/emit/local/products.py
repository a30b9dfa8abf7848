"""Products of tensors as products of matrices, where a compiler would put operands in another order first."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autopar.backends.xla_cpu.matrices import Dims, contracted_first, merges_dims, numbers_of
from autopar.emit.local.shard import Array, LocalOp, Run


def dot_general(local: LocalOp) -> Run:
    """As it is; for XLA's CPU compiler as one of matrices where dims are to be merged that come before the others.

    That compiler (jax 0.10.2) puts such an operand in another order, within the kernel that makes it, though its
    library multiplies matrices in any order: x[2, 128, 256] and y[2, 128, 1024], over both first dims as in gradients
    of weights, take 6.2 ms, and as matrices 3.7; x[1, 768, 512] and y[1, 768, 1024] 30 and 18.5 (8 devices, 2 cores).
    """
    first = (
        contracted_first(local.op)
        if local.backend.wants_matrices and merges_dims(local.op)
        else None
    )
    if first is None:
        return local.bind()

    contracted, (batch, _) = numbers_of(local.op)
    count = len(batch)
    shape = local.out_shape()
    left, right = (count if is_first else count + 1 for is_first in first)
    product = local.bind(dimension_numbers=(((left,), (right,)), (batch, batch)))

    def run(*operands: Array) -> Sequence[Array]:
        pairs = zip(operands, contracted, first, strict=True)
        (found,) = product(*(_as_matrix(x, dims, count, is_first) for x, dims, is_first in pairs))
        return [found.reshape(shape)]

    return run


def _as_matrix(value: Array, dims: Dims, batch: int, is_first: bool) -> Array:
    """`value` with one dim behind its batch dims for all that are contracted, and one for the others."""
    summed = prod(value.shape[d] for d in dims)
    kept = prod(size for d, size in enumerate(value.shape) if d >= batch and d not in dims)
    return value.reshape(*value.shape[:batch], *((summed, kept) if is_first else (kept, summed)))
