"""Cases of kernels of Pallas, interpreted: blocks of rows, of both dims of a product, and blocks that rows share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from tests.ops.build import Arg, Case


def _call(kernel: Callable[..., None], grid: Any, ins: Any, out: Any, shape: Any) -> Any:
    of = jax.ShapeDtypeStruct(shape, "float32")
    return pl.pallas_call(
        kernel, grid=grid, in_specs=ins, out_specs=out, out_shape=of, interpret=True
    )


def _product(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
    out_ref[...] = jnp.dot(x_ref[...], y_ref[...])


def _sum(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] + y_ref[...]


_ROWS = pl.BlockSpec((2, 4), lambda i, j: (i, 0))
_COLUMNS = pl.BlockSpec((4, 2), lambda i, j: (0, j))
_BOTH = pl.BlockSpec((2, 2), lambda i, j: (i, j))
_EACH = pl.BlockSpec((None, 4), lambda i: (i, 0))
_SHARED = pl.BlockSpec((None, 4), lambda i: (i // 2, 0))


def _case(name: str, function: Any, *args: Arg) -> Case:
    return Case("pallas_kernel", f"pallas_kernel {name}", function, args)


KERNELS = [
    _case(
        "of a product",
        _call(_product, (4, 4), [_ROWS, _COLUMNS], _BOTH, (8, 8)),
        Arg((8, 4)),
        Arg((4, 8)),
    ),
    _case(
        "of rows that share",
        _call(_sum, (8,), [_EACH, _SHARED], _EACH, (8, 4)),
        Arg((8, 4)),
        Arg((4, 4)),
    ),
]
