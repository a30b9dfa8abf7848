"""Collectives as JAX programs, alone and between kernels; what one device does, within shard_map."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from autopar._compat import untyped_jax
from autopar.calibration.cases import Case

lax = untyped_jax.lax
Operands = tuple[Any, ...]
Shapes = tuple[tuple[tuple[int, ...], str], ...]
"""The shape and element type of each of a device's operands."""
Whole = Callable[..., Operands]
"""All operands of one device to those of the next round."""


def before_and_after(case: Case) -> Shapes:
    """A device's operand and result of a collective."""
    members = prod(case.mesh[a] for a in case.axes)
    whole = ((case.dims[0],), case.dtype)
    part = ((case.dims[0] // members,), case.dtype)
    return (
        part if case.kind == "all_gather" else whole,
        part if case.kind == "reduce_scatter" else whole,
    )


def sent(case: Case, axes: tuple[str, ...]) -> Callable[[Any], Any]:
    """The collective, of one device's operand."""
    members = prod(case.mesh[a] for a in case.axes)

    match case.kind:
        case "all_reduce":
            return lambda x: lax.psum(x, axes)
        case "all_gather":
            return lambda x: lax.all_gather(x, axes, axis=0, tiled=True)
        case "reduce_scatter":
            return lambda x: lax.psum_scatter(x, axes, scatter_dimension=0, tiled=True)
        case "all_to_all":
            return lambda x: lax.all_to_all(x, axes, 0, 0, tiled=True)
        case _:
            pairs = [(n, (n + 1) % members) for n in range(members)]
            return lambda x: lax.ppermute(x, axes, pairs)


def between_kernels(case: Case, names: tuple[str, ...]) -> tuple[Shapes, Whole, Whole]:
    """A collective of each array between a kernel that makes its operand and one that reads its result; these alone.

    So programs run them: slices that are sent become part of the kernel before, and no copy is made, where a donated
    operand that is sent at once is copied first. Each array waits for the one before: no collectives are combined (XLA
    makes one all-reduce of several), and none follows another before the devices have computed.
    """
    shapes = before_and_after(case)
    send = sent(case, tuple(names[a] for a in case.axes))

    def between(*operands: Any) -> Operands:
        held = list(operands)
        waited = 0.001
        for n in range(0, len(held), 2):
            held[n + 1] = _kernel(send(_kernel(held[n], waited)), 0.001)
            waited = _first(held[n + 1])
        return tuple(held)

    def kernels(*operands: Any) -> Operands:
        return tuple(_kernel(value, 0.001) for value in operands)

    return shapes * case.arrays, between, kernels


def _kernel(value: Any, added: Any) -> Any:
    """A kernel that reads and writes as much as `value` holds, and whose results stay near 1 however often it runs."""
    return value * 0.999 + added


def _first(value: Any) -> Any:
    """A thousandth of the first element of a vector."""
    return lax.slice(value, (0,), (1,)).reshape(()) * 0.001
