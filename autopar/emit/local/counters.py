"""Operators that number the elements of their result: a shard counts on from where it begins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

import numpy as np

from autopar._compat import pcast_varying, untyped_jax, varying_axes
from autopar.core.counters import counted_dim, elements_of_a_count
from autopar.emit.local.shard import Array, LocalOp, Run
from autopar.emit.slicing import slice_at

lax = untyped_jax.lax
jnp = untyped_jax.numpy

Words = tuple[Array, Array]
_WORD = 1 << 32


def iota(local: LocalOp) -> Run:
    """out[d..., k] = start + k, counted in integers so that rounding to another type is that of the whole."""
    axis: int = local.op.params["dimension"]
    axes = local.strategy.outs[0].dims[axis]
    shape = local.out_shape()
    if not axes:
        return local.bind(shape=shape)

    dtype = np.dtype(local.op.outs[0].dtype)
    counter = dtype if np.issubdtype(dtype, np.integer) else np.dtype(np.int32)
    count = local.bind(shape=shape, dtype=counter)

    def run() -> Sequence[Array]:
        start = lax.convert_element_type(local.start(axes, local.op.outs[0].shape[axis]), counter)
        numbers = count()[0] if not local.interleaved else count()[0] * local.step(axes)
        return [(numbers + start).astype(dtype)]

    return run


def iota_2x32_shape(local: LocalOp) -> Run:
    """high, low = the two words of each element's row-major number in the whole tensor, exact up to 2^64 elements."""
    placement = local.strategy.outs[0]
    shape = local.op.outs[0].shape
    if not placement.split_axes:
        return local.bind()

    local_shape = local.out_shape()
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    product = _product_of_words if prod(shape) > _WORD else _small_product

    def run() -> Sequence[Array]:
        words: list[Words] = []
        for d, axes in enumerate(placement.dims):
            start = lax.convert_element_type(local.start(axes, shape[d]), np.uint32)
            along = [-1 if e == d else 1 for e in range(len(shape))]
            numbers = lax.iota(np.uint32, local_shape[d])
            numbers = numbers if not local.interleaved else numbers * np.uint32(local.step(axes))
            coordinate = (numbers + start).reshape(along)
            words.append(product(coordinate, strides[d]))
        return reduce(_sum_of_words, words)

    return run


def rng_bit_generator(local: LocalOp) -> Run:
    """Bits of a stream that begins where this shard does; the key after all of them is that of the whole.

    Where a device's own generator is no counter, as on TPU, all bits are made and the shard is cut out.
    """
    dim = counted_dim(local.op)
    axes = () if dim is None else local.strategy.outs[1].dims[dim]
    whole = local.bind()
    if dim is None or not axes:
        return whole

    shape = local.out_shape(1)
    total = prod(local.op.outs[1].shape)
    size = elements_of_a_count(local.op)
    shard = local.bind(shape=shape)

    def counted(key: Array) -> list[Array]:
        here = lax.convert_element_type(local.offset_of(axes), np.uint32)
        _, bits = shard(_counted_on(key, _product_of_words(here, prod(shape) // size)))
        # JAX takes no notice of what the state varies over
        bits = pcast_varying(bits, varying_axes(here))
        return [_counted_on(key, _words(-(-total // size))), bits]

    def cut(key: Array) -> list[Array]:
        after, bits = whole(key)
        return [
            after,
            slice_at(bits, local.start(axes, local.op.outs[1].shape[dim]), shape[dim], dim),
        ]

    def run(key: Array) -> Sequence[Array]:
        return lax.platform_dependent(key, cpu=counted, cuda=counted, rocm=counted, default=cut)

    return run


def _counted_on(key: Array, counts: Words) -> Array:
    """The state of a counter after so many counts."""
    high, low = _sum_of_words((key[3], key[2]), counts)
    return jnp.stack([key[0], key[1], low, high])


def _words(number: int) -> Words:
    high, low = divmod(number, _WORD)
    return jnp.uint32(high), jnp.uint32(low)


def _small_product(x: Array, y: int) -> Words:
    """The product where it is below 2^32."""
    return x & np.uint32(0), x * np.uint32(y)


def _product_of_words(x: Array, y: int) -> Words:
    """The product modulo 2^64, for a `y` below 2^64: schoolbook multiplication of half words."""
    y_high, y_low = divmod(y, _WORD)
    half = np.uint32(16)
    mask = np.uint32(0xFFFF)
    x1 = x >> half
    x0 = x & mask
    y1 = np.uint32(y_low >> 16)
    y0 = np.uint32(y_low & 0xFFFF)
    low = x0 * y0
    cross = x0 * y1
    crossed = x1 * y0
    high = x1 * y1
    middle = (low >> half) + (cross & mask) + (crossed & mask)
    high = high + (cross >> half) + (crossed >> half) + (middle >> half)

    return high + x * np.uint32(y_high), (middle << half) | (low & mask)


def _sum_of_words(x: Words, y: Words) -> Words:
    """The sum modulo 2^64."""
    low = x[1] + y[1]
    carry = (low < y[1]).astype(np.uint32)
    return x[0] + y[0] + carry, low
