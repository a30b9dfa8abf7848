"""Operators that communicate inside, with parameters drawn at random: one function for each family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.ops.build import Arg, Case

Rng = np.random.Generator
FLOATS = ("float32", "float32", "bfloat16")


def pick(rng: Rng, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def convolution_of(rng: Rng) -> tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]:
    """A convolution of one or two spatial dims, and the shapes of its operands."""
    ndim = int(rng.integers(1, 3))
    groups, batch_groups = pick(rng, (1, 1), (1, 1), (2, 1), (4, 1), (1, 2))
    kernel = tuple(int(k) for k in rng.integers(1, 5, ndim))
    strides = tuple(int(s) for s in rng.integers(1, 3, ndim))
    dilation = tuple(int(d) for d in rng.integers(1, 3, ndim))
    base = tuple(int(pick(rng, 1, 1, 2)) for _ in range(ndim))
    size = tuple(int(n) for n in rng.choice([8, 12, 16], ndim))
    padding = pick(
        rng,
        "SAME",
        "SAME",
        tuple(
            _padding(rng, *each) for each in zip(size, kernel, strides, dilation, base, strict=True)
        ),
    )
    if padding == "SAME":
        base = (1,) * ndim

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            w,
            strides,
            padding,
            lhs_dilation=base,
            rhs_dilation=dilation,
            feature_group_count=groups,
            batch_group_count=batch_groups,
        )

    return convolve, (batch_groups, 4, *size), (4, 4 // groups, *kernel)


def _padding(
    rng: Rng, size: int, kernel: int, stride: int, dilation: int, base: int
) -> tuple[int, int]:
    """Padding, at the beginning any, in all such that the result divides by 4."""
    low = int(rng.integers(-1, 4))
    reach, width = (size - 1) * base + 1, (kernel - 1) * dilation + 1
    high = next(
        h
        for h in range(-1, 40)
        if (n := low + reach + h - width) >= 0 and (n // stride + 1) % 4 == 0
    )
    return low, high


def convolution(rng: Rng) -> Case:
    convolve, x, w = convolution_of(rng)
    return Case("conv_general_dilated", "convolution", convolve, (Arg(x), Arg(w)))


def operand_gradient(rng: Rng) -> Case:
    convolve, x, w = convolution_of(rng)
    out = jax.eval_shape(convolve, jnp.zeros(x), jnp.zeros(w)).shape
    transposed = lambda g, w: jax.linear_transpose(lambda x: convolve(x, w), jnp.zeros(x))(g)[0]  # noqa: E731
    return Case("conv_general_dilated", "operand gradient", transposed, (Arg(out), Arg(w)))


def kernel_gradient(rng: Rng) -> Case:
    convolve, x, w = convolution_of(rng)
    out = jax.eval_shape(convolve, jnp.zeros(x), jnp.zeros(w)).shape
    transposed = lambda x, g: jax.linear_transpose(lambda w: convolve(x, w), jnp.zeros(w))(g)[0]  # noqa: E731
    return Case("conv_general_dilated", "kernel gradient", transposed, (Arg(x), Arg(out)))


def pool_of(
    rng: Rng, operator: Any, initial: Any, dilated: bool = True
) -> tuple[Callable[..., Any], tuple[int, ...]]:
    """A pooling of two dims, and the shape of its operand."""
    size, window = (
        (int(n) for n in rng.choice([8, 12, 16], 2)),
        tuple(int(k) for k in rng.integers(1, 5, 2)),
    )
    size = tuple(size)
    strides = tuple(int(s) for s in rng.integers(1, 4, 2))
    dilation = tuple(int(pick(rng, 1, 1, 2)) for _ in range(2)) if dilated else (1, 1)
    base = tuple(int(pick(rng, 1, 1, 2)) for _ in range(2)) if dilated else (1, 1)
    padding = [
        _pooled_padding(rng, *each)
        for each in zip(size, window, strides, dilation, base, strict=True)
    ]

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, initial, operator, window, strides, padding, base, dilation)

    return pool, size


def _pooled_padding(
    rng: Rng, size: int, window: int, stride: int, dilation: int, base: int
) -> tuple[int, int]:
    low, high = _padding(rng, size, window, stride, dilation, base)
    return (
        (low, high)
        if 0 <= low < window and high >= 0
        else (0, max(0, high + min(low, 0)) if low <= 0 else 0)
    )


def pooling(rng: Rng) -> Case:
    kind, operator, initial = pick(
        rng,
        ("reduce_window_sum", lax.add, 0.0),
        ("reduce_window_max", lax.max, -np.inf),
        ("reduce_window_min", lax.min, np.inf),
        ("reduce_window", lambda a, b: a * b, 1.0),
    )
    pool, size = pool_of(rng, operator, np.float32(initial))
    return Case(kind, kind, pool, (Arg(size),))


def pooling_gradient(rng: Rng) -> Case:
    operator, initial = pick(rng, (lax.max, -np.inf), (lax.min, np.inf))
    pool, size = pool_of(rng, operator, np.float32(initial), dilated=False)
    count = jax.eval_shape(pool, jnp.zeros(size)).shape
    # whole windows of what never wins
    many = pick(rng, lambda x: x, lambda x: jnp.where(x < 0, initial, x))
    gradient = lambda x, g: jax.vjp(lambda x: pool(x), many(x))[1](g)  # noqa: E731
    return Case("select_and_scatter_add", "pooling gradient", gradient, (Arg(size), Arg(count)))


def pooling_tangents(rng: Rng) -> Case:
    operator, initial = pick(rng, (lax.max, -np.inf), (lax.min, np.inf))
    pool, size = pool_of(rng, operator, np.float32(initial), dilated=False)
    return Case(
        "select_and_gather_add",
        "pooling tangents",
        lambda x, t: jax.jvp(pool, (x,), (t,)),
        (Arg(size),) * 2,
    )


def cumulative(rng: Rng) -> Case:
    kind = pick(rng, "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
    axis, reverse = int(rng.integers(2)), bool(rng.integers(2))
    dtype = pick(rng, "float32", "bfloat16", *(() if kind == "cumlogsumexp" else ("int32",)))
    shape = tuple(int(n) for n in rng.choice([4, 8, 12], 2))
    return Case(
        kind,
        kind,
        lambda x: getattr(lax, kind)(x, axis=axis, reverse=reverse),
        (Arg(shape, dtype, -3, 3),),
    )


def with_nans(x: Any) -> Any:
    return jnp.where(x > 0.6, jnp.nan, x) if jnp.issubdtype(x.dtype, jnp.floating) else x


def arg_extremum(rng: Rng) -> Case:
    kind, axis = pick(rng, "argmax", "argmin"), int(rng.integers(2))
    shape = tuple(int(n) for n in rng.choice([4, 8, 12], 2))
    dtype, index = pick(rng, "float32", "int32", "bfloat16", "bool"), pick(rng, "int32", "uint8")
    change = pick(rng, lambda x: x, with_nans)
    run = lambda x: getattr(lax, kind)(change(x), axis, np.dtype(index))  # noqa: E731
    return Case(kind, kind, run, (Arg(shape, dtype, -2, 2),))


def top_k(rng: Rng) -> Case:
    k = int(rng.integers(1, 9))
    dtype = pick(rng, "float32", "int32", "bfloat16")
    change = pick(rng, lambda x: x, with_nans)
    return Case(
        "top_k", f"top_k {k}", lambda x: lax.top_k(change(x), k), (Arg((4, 8), dtype, -3, 3),)
    )


def sort(rng: Rng) -> Case:
    """Few different keys, NaN and both zeros among them, with the place of each, or none; in any order."""
    size, keys = int(rng.choice([72, 76, 84, 100, 120])), int(rng.integers(1, 3))
    dtype = pick(rng, "float32", "int8", "bool", "bfloat16", "uint16")
    with_places, axis = bool(rng.integers(2)), int(rng.integers(2))
    shape = (size, 2) if axis == 0 else (2, size)
    change = pick(
        rng, lambda x: x, lambda x: jnp.where(x > 1, jnp.nan, jnp.where(x < -1, -0.0, jnp.round(x)))
    )
    change = change if dtype in FLOATS else lambda x: x

    def run(*xs: Any) -> Any:
        places = lax.broadcasted_iota(np.int32, shape, axis)
        return lax.sort(
            (*map(change, xs), *([places] if with_places else [])), dimension=axis, num_keys=keys
        )

    ends = (0, 2) if dtype in ("bool", "uint16") else (-3, 3)
    return Case("sort", f"sort {size} {dtype}", run, (Arg(shape, dtype, *ends),) * keys)


def slice_(rng: Rng) -> Case:
    size, start, stride = (
        int(rng.choice([8, 16, 32])),
        int(rng.integers(0, 5)),
        int(rng.integers(1, 4)),
    )
    count = max(4, (size - start) // stride // 4 * 4)
    start = min(start, size - (count - 1) * stride - 1)
    stride = stride if start >= 0 else 1
    start = max(start, 0)
    limit = start + (count - 1) * stride + 1
    return Case(
        "slice",
        "slice",
        lambda x: lax.slice(x, (0, start), (4, limit), (1, stride)),
        (Arg((4, size)),),
    )


def pad(rng: Rng) -> Case:
    size, gap = int(rng.choice([8, 16])), int(rng.integers(0, 2))
    config = (*_padding(rng, size, 1, 1, 1, gap + 1), gap)
    value = pick(rng, lambda v: v, lambda _: 0.0, lambda _: 2.0)
    dtype = pick(rng, *FLOATS)
    other = (int(pick(rng, 0, 2)), int(pick(rng, 0, 2)), 0)
    run = lambda x, v: lax.pad(x, jnp.asarray(value(v), x.dtype), (other, config))  # noqa: E731
    return Case("pad", f"pad {config}", run, (Arg((4, size), dtype), Arg((), dtype)))


def rev(rng: Rng) -> Case:
    dims = pick(rng, (0,), (1,), (0, 1))
    return Case(
        "rev",
        f"rev {dims}",
        lambda x: lax.rev(x, dims),
        (Arg((4, 8), pick(rng, "float32", "bool")),),
    )


def concatenate(rng: Rng) -> Case:
    sizes = pick(rng, (4, 4), (8, 4, 4), (4, 28), (28, 4), (4, 8), (4, 4, 4, 4))
    args = tuple(Arg((4, size)) for size in sizes)
    return Case("concatenate", f"concatenate {sizes}", lambda *xs: lax.concatenate(xs, 1), args)


def dynamic_slice(rng: Rng) -> Case:
    sizes = (int(rng.integers(1, 5)), int(rng.integers(1, 9)))
    starts = Arg((2,), pick(rng, "int32", "uint8"), 0, 12)
    run = lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), sizes)  # noqa: E731
    return Case(
        "dynamic_slice",
        f"dynamic_slice {sizes}",
        run,
        (Arg((4, 8), pick(rng, "float32", "bool")), starts),
    )


def dynamic_update_slice(rng: Rng) -> Case:
    sizes = (int(rng.integers(1, 5)), int(rng.integers(1, 9)))
    starts = Arg((2,), pick(rng, "int32", "uint8"), 0, 12)
    run = lambda x, u, i: lax.dynamic_update_slice(x, u, (i[0], i[1]))  # noqa: E731
    dtype = pick(rng, "float32", "bool")
    args = (Arg((4, 8), dtype), Arg(sizes, dtype), starts)
    return Case("dynamic_update_slice", f"dynamic_update_slice {sizes}", run, args)


WINDOWED = (
    convolution,
    operand_gradient,
    kernel_gradient,
    pooling,
    pooling_gradient,
    pooling_tangents,
)
RANKED = (cumulative, arg_extremum, top_k, sort)
MOVED = (slice_, pad, rev, concatenate, dynamic_slice, dynamic_update_slice)
