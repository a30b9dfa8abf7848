"""Curves: how much of its peaks a device reaches, by kind of operation, shape and size. All of it is optional.

A device without an `Efficiency` reaches all of every peak, as its roofline says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)

PRODUCTS = frozenset(
    {"", "dot_general", "scaled_dot", "ragged_dot_general", "conv_general_dilated", "symmetric_product", "attention"}
)
"""The kinds of operation whose peak is that of products, where they have no rate of their own."""
OTHER = "other"
"""Among the rates, that of each operation that is no product and has no rate of its own."""


@dataclass(frozen=True)
class Curve:
    """Seconds by size in bytes: straight lines from (0, 0) through the points, and `seconds_per_byte` after the last.

    Continuous and monotone. Invariants: as many sizes as seconds, sizes ascend, seconds do not descend, all are finite
    and >= 0, and no size is 0.
    """

    sizes_bytes: tuple[float, ...]
    seconds: tuple[float, ...]
    seconds_per_byte: float

    def __post_init__(self) -> None:
        if len(self.sizes_bytes) != len(self.seconds):
            raise ValueError(f"a curve has {len(self.sizes_bytes)} sizes and {len(self.seconds)} seconds")
        for name, values in (("sizes_bytes", self.sizes_bytes), ("seconds", self.seconds)):
            if not all(isfinite(v) for v in values) or any(b < a for a, b in zip((0.0, *values), values, strict=False)):
                raise ValueError(f"a curve's {name} must ascend from 0, got {values}")
        if 0.0 in self.sizes_bytes or len(set(self.sizes_bytes)) != len(self.sizes_bytes):
            raise ValueError(f"a curve's sizes_bytes must differ and be > 0, got {self.sizes_bytes}")
        if not (isfinite(self.seconds_per_byte) and self.seconds_per_byte >= 0):
            raise ValueError(f"a curve's seconds_per_byte must be finite and >= 0, got {self.seconds_per_byte}")

    def time_s(self, size_bytes: float) -> float:
        """Seconds at `size_bytes` (>= 0)."""
        position = bisect_right(self.sizes_bytes, size_bytes)
        if position == len(self.sizes_bytes):
            last_size, last = (self.sizes_bytes[-1], self.seconds[-1]) if position else (0.0, 0.0)
            return last + (size_bytes - last_size) * self.seconds_per_byte
        low_size, low = (self.sizes_bytes[position - 1], self.seconds[position - 1]) if position else (0.0, 0.0)
        share = (size_bytes - low_size) / (self.sizes_bytes[position] - low_size)
        return low + share * (self.seconds[position] - low)

    def times_s(self, sizes_bytes: Floats) -> Floats:
        """`time_s` of each."""
        if not self.sizes_bytes:
            return sizes_bytes * self.seconds_per_byte
        inside = np.interp(sizes_bytes, (0.0, *self.sizes_bytes), (0.0, *self.seconds))
        return inside + np.maximum(0.0, sizes_bytes - self.sizes_bytes[-1]) * self.seconds_per_byte


@dataclass(frozen=True)
class HalfSizes:
    """The sizes at which a product of matrices reaches half of the peak, one for each of its dims, the others large.

        seconds = 2 b (m + m0) (n + n0) (k + k0) / peak

    Monotone and continuous; large products reach the peak. Invariant: all are finite and >= 0.

    Reference: Hockney 1982, "Characterization of parallel computers and algorithms" (the half-performance length n_1/2
    of a vector pipeline). Differs: for each of three dims.
    """

    m: float
    n: float
    k: float

    def __post_init__(self) -> None:
        if not all(isfinite(size) and size >= 0 for size in (self.m, self.n, self.k)):
            raise ValueError(f"half sizes must be finite and >= 0, got {(self.m, self.n, self.k)}")

    def stretch(self, m: Number, n: Number, k: Number) -> Number:
        """How many times as long as at the peak the product takes: (1 + m0 / m) (1 + n0 / n) (1 + k0 / k)."""
        return (1.0 + self.m / m) * (1.0 + self.n / n) * (1.0 + self.k / k)


@dataclass(frozen=True)
class Efficiency:
    """What a device reaches.

    `products`: for each element type the half sizes of products of matrices; none: the peak at any size.
    `rates`: operations per second of a kind of operation (JAX's names of primitives, `OTHER`), for each element type:
    one for every element where they are no products. `memory`: seconds of a kernel that moves so many bytes; None:
    bytes / bandwidth.

    Invariant: rates are finite and > 0, and every kind has one for float32.
    """

    products: Mapping[str, HalfSizes] = field(default_factory=dict[str, HalfSizes], hash=False)
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]], hash=False)
    memory: Curve | None = None

    def __post_init__(self) -> None:
        for kind, by_dtype in self.rates.items():
            if "float32" not in by_dtype:
                raise ValueError(f"rates of {kind!r} have none for float32, to which other types fall back")
            for dtype, rate in by_dtype.items():
                if not (isfinite(rate) and rate > 0):
                    raise ValueError(f"rates[{kind}][{dtype}] must be finite and > 0, got {rate}")

    def rate(self, kind: str, dtype: str) -> float | None:
        """Operations per second of `kind`; None: the peak. A type without a rate takes that of float32."""
        by_dtype = self.rates.get(kind)
        if by_dtype is None and kind not in PRODUCTS:
            by_dtype = self.rates.get(OTHER)
        return None if by_dtype is None else by_dtype.get(dtype, by_dtype["float32"])


def product_dims(left: Number, right: Number, out: Number, operations: Number) -> tuple[Number, Number, Number]:
    """(m, n, k) of lhs[b, m, k] . rhs[b, k, n], from the elements of both and of the result, and from 2 b m n k."""
    pairs = operations / 2.0
    return pairs / right, pairs / left, pairs / out


def slowest_curve(curves: tuple[Curve, ...]) -> Curve:
    """The curve that is nowhere below any of these: their largest at the sizes of all of them."""
    sizes = tuple(sorted({size for curve in curves for size in curve.sizes_bytes}))
    seconds = tuple(max(curve.time_s(size) for curve in curves) for size in sizes)
    return Curve(sizes, seconds, max(curve.seconds_per_byte for curve in curves))
