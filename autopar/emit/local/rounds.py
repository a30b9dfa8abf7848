"""Rounds: what stands around a scan whose rounds communicate for one another (`passes.double_buffer`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autopar._compat import untyped_jax
from autopar.emit.local.shard import Array, LocalOp, Run

lax = untyped_jax.lax
jnp = untyped_jax.numpy


def scan_first(local: LocalOp) -> Run:
    """The slice of the first round."""
    scan: Any = local.op.payload
    index = scan["length"] - 1 if scan["reverse"] else 0

    def run(stack: Array) -> Sequence[Array]:
        return (lax.index_in_dim(stack, index, keepdims=False),)

    return run


def scan_start(local: LocalOp) -> Run:
    """Zeros, for what a round before the first would leave."""
    shape = local.out_shape()
    dtype = local.op.outs[0].dtype

    def run() -> Sequence[Array]:
        return (jnp.zeros(shape, dtype),)

    return run


def scan_last(local: LocalOp) -> Run:
    """The stack, with the slice of the last round."""
    scan: Any = local.op.payload
    index = 0 if scan["reverse"] else scan["length"] - 1

    def run(stack: Array, value: Array) -> Sequence[Array]:
        return (lax.dynamic_update_index_in_dim(stack, value, index, 0),)

    return run
