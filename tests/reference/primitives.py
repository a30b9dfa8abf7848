"""Primitives on numpy arrays: those that programs are mostly made of. All others are run by JAX, one at a time.

An operator's payload with its primitive replaced by a `Plain` one goes through `localize` as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

Values = list[np.ndarray]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Plain:
    """A primitive with the methods that `localize` calls, on numpy arrays; JAX's own where there is no other."""

    primitive: Any
    multiple_results: bool = True

    def get_bind_params(self, params: dict[str, Any]) -> dict[str, Any]:
        return params

    def bind(self, *operands: Any, **params: Any) -> Values:
        return run(self.primitive, params, [np.asarray(operand) for operand in operands])


def run(primitive: Any, params: Mapping[str, Any], values: Sequence[np.ndarray]) -> Values:
    """The results of a primitive, as a list."""
    name = primitive.name
    if name in TABLE:
        with np.errstate(all="ignore"):
            results = TABLE[name](*values, **params)
    else:
        results = primitive.bind(*values, **primitive.get_bind_params(dict(params)))
        results = results if primitive.multiple_results else [results]
    results = results if isinstance(results, list | tuple) else [results]
    return [result if _is_key(result) else np.asarray(result) for result in results]


def _is_key(value: Any) -> bool:
    """Typed keys have no numpy form."""
    return isinstance(value, jax.Array) and bool(
        jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    )


def _elementwise(function: Function) -> Function:
    return lambda *values, **_: function(*values)


def _reduction(function: Function) -> Function:
    return lambda x, axes, **_: function(x, axis=tuple(axes), dtype=x.dtype)


def _extremum(function: Function) -> Function:
    return lambda x, axes, **_: function(x, axis=tuple(axes))


def _position(function: Function) -> Function:
    return lambda x, axes, index_dtype: function(x, axis=axes[0]).astype(index_dtype)


def _running(function: np.ufunc) -> Function:
    def running(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
        turned = np.flip(x, axis) if reverse else x
        result = function.accumulate(turned, axis=axis, dtype=x.dtype)
        return np.flip(result, axis) if reverse else result

    return running


def _div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "iu":
        return x / y
    quotient = np.where(y == 0, 0, x // np.where(y == 0, 1, y))
    inexact = quotient * y != x
    towards_zero = quotient + (inexact & ((x < 0) != (y < 0)))
    return np.where(y == 0, np.asarray(-1).astype(x.dtype), towards_zero).astype(x.dtype)


def _rem(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "iu":
        return np.fmod(x, y)
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y))).astype(x.dtype)


def _convert(x: np.ndarray, new_dtype: Any, **_: Any) -> np.ndarray:
    if np.dtype(new_dtype) == bool:
        return x != 0
    real = x.dtype.kind == "c" and np.dtype(new_dtype).kind != "c"
    return (x.real if real else x).astype(new_dtype)


def _select_n(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    return np.where(which, cases[1], cases[0]) if len(cases) == 2 else np.choose(which, cases)


def _broadcast_in_dim(
    x: np.ndarray, *_: Any, shape: Sequence[int], broadcast_dimensions: Sequence[int], **__: Any
) -> np.ndarray:
    aligned = [1] * len(shape)
    for size, dim in zip(x.shape, broadcast_dimensions, strict=True):
        aligned[dim] = size
    return np.broadcast_to(x.reshape(aligned), tuple(shape))


def _slice(x: np.ndarray, start_indices: Any, limit_indices: Any, strides: Any) -> np.ndarray:
    for limit, size in zip(limit_indices, x.shape, strict=True):
        assert 0 <= limit <= size, f"slice to {limit_indices} of {x.shape}"
    steps = strides or (1,) * x.ndim
    return x[
        tuple(slice(*bounds) for bounds in zip(start_indices, limit_indices, steps, strict=True))
    ]


def _pad(x: np.ndarray, value: np.ndarray, padding_config: Any) -> np.ndarray:
    for dim, (low, high, inner) in enumerate(padding_config):
        size = x.shape[dim]
        spread = size + max(size - 1, 0) * inner
        before, after = max(-low, 0), max(-high, 0)
        full = np.full(
            (*x.shape[:dim], max(low, 0) + spread + max(high, 0), *x.shape[dim + 1 :]),
            value,
            x.dtype,
        )
        where = [slice(None)] * x.ndim
        where[dim] = slice(max(low, 0), max(low, 0) + spread, inner + 1)
        full[tuple(where)] = x
        where[dim] = slice(before, full.shape[dim] - after)
        x = full[tuple(where)]
    return x


def _starts(
    starts: Sequence[np.ndarray], shape: Sequence[int], sizes: Sequence[int]
) -> list[slice]:
    """The windows that dynamic slices read and write: starts are moved to where the window fits."""
    firsts = [min(max(int(s), 0), n - m) for s, n, m in zip(starts, shape, sizes, strict=True)]
    return [slice(first, first + size) for first, size in zip(firsts, sizes, strict=True)]


def _dynamic_slice(x: np.ndarray, *starts: np.ndarray, slice_sizes: Sequence[int]) -> np.ndarray:
    return x[tuple(_starts(starts, x.shape, slice_sizes))]


def _dynamic_update_slice(x: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    result = x.copy()
    result[tuple(_starts(starts, x.shape, update.shape))] = update
    return result


def _split(x: np.ndarray, axis: int, sizes: Sequence[int]) -> Values:
    assert sum(sizes) == x.shape[axis], f"split of {x.shape} into {sizes}"
    return np.split(x, np.cumsum(sizes)[:-1], axis=axis)


def _reshape(
    x: np.ndarray, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None, **_: Any
) -> np.ndarray:
    """With `dimensions` these are brought into that order first."""
    return (x if dimensions is None else x.transpose(dimensions)).reshape(tuple(new_sizes))


def _dot_general(
    lhs: np.ndarray, rhs: np.ndarray, dimension_numbers: Any, **params: Any
) -> np.ndarray:
    (lhs_k, rhs_k), (lhs_b, rhs_b) = dimension_numbers
    dtype = params.get("preferred_element_type") or lhs.dtype
    left, right = list(range(lhs.ndim)), list(range(lhs.ndim, lhs.ndim + rhs.ndim))
    for d, e in zip((*lhs_k, *lhs_b), (*rhs_k, *rhs_b), strict=True):
        right[e] = left[d]
        assert lhs.shape[d] == rhs.shape[e], (
            f"dot_general of {lhs.shape} and {rhs.shape}: {dimension_numbers}"
        )
    free = [i for d, i in enumerate(left) if d not in (*lhs_k, *lhs_b)]
    free += [i for d, i in enumerate(right) if d not in (*rhs_k, *rhs_b)]
    out = [left[d] for d in lhs_b] + free
    return np.einsum(lhs.astype(dtype), left, rhs.astype(dtype), right, out)


def _iota(dtype: Any, shape: Sequence[int], dimension: int, **_: Any) -> np.ndarray:
    along = [-1 if d == dimension else 1 for d in range(len(shape))]
    return np.broadcast_to(np.arange(shape[dimension]).astype(dtype).reshape(along), tuple(shape))


def _sort(*operands: np.ndarray, dimension: int, is_stable: bool, num_keys: int) -> Values:
    """Sorted by the first `num_keys` operands, the first of them most significant; always stably."""
    del is_stable
    order = np.lexsort(tuple(reversed(operands[:num_keys])), axis=dimension)
    return [np.take_along_axis(operand, order, axis=dimension) for operand in operands]


_ELEMENTWISE: dict[str, Function] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "atan2": np.arctan2,
    "ceil": np.ceil,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "copy": np.asarray,
    "cos": np.cos,
    "div": _div,
    "eq": np.equal,
    "eq_to": np.equal,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: (1 / (1 + np.exp(-x))).astype(x.dtype),
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "pow": np.power,
    "rem": _rem,
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype),
    "select_n": _select_n,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "sub": np.subtract,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
}
TABLE: dict[str, Function] = {
    name: _elementwise(function) for name, function in _ELEMENTWISE.items()
} | {
    "argmax": _position(np.argmax),
    "argmin": _position(np.argmin),
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda *values, dimension: np.concatenate(values, axis=dimension),
    "convert_element_type": _convert,
    "cummax": _running(np.maximum),
    "cummin": _running(np.minimum),
    "cumprod": _running(np.multiply),
    "cumsum": _running(np.add),
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "integer_pow": lambda x, y: np.power(x, y) if y >= 0 else (1 / np.power(x, -y)).astype(x.dtype),
    "iota": _iota,
    "pad": _pad,
    "reduce_and": _extremum(np.bitwise_and.reduce),
    "reduce_max": _extremum(np.max),
    "reduce_min": _extremum(np.min),
    "reduce_or": _extremum(np.bitwise_or.reduce),
    "reduce_prod": _reduction(np.prod),
    "reduce_sum": _reduction(np.sum),
    "reshape": _reshape,
    "rev": lambda x, dimensions: np.flip(x, dimensions),
    "slice": _slice,
    "sort": _sort,
    "split": _split,
    "squeeze": lambda x, dimensions: x.squeeze(tuple(dimensions)),
    "transpose": lambda x, permutation: np.transpose(x, permutation),
}
