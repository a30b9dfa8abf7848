"""Curves: how much of its peaks a device reaches, by kind of operation, shape and size. All of it is optional.

A device without an `Efficiency` reaches all of every peak, as its roofline says.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Number = TypeVar("Number", float, Floats)

PRODUCTS = frozenset(
    {
        "",
        "dot_general",
        "scaled_dot",
        "ragged_dot_general",
        "conv_general_dilated",
        "symmetric_product",
        "attention",
    }
)
"""The kinds of operation whose peak is that of products, where they have no rate of their own."""
CONVOLUTIONS = ("conv_general_dilated", "conv_general_dilated:image", "conv_general_dilated:window")
"""A convolution, and its gradients of the image and of the window, which are convolutions in another order of dims."""
PICKING = ("gather", "scatter-add")
"""What reads, or adds to, rows that indices name; other scatters take as long as the one that adds."""
OTHER = "other"
"""Among the rates, that of each operation that is no product and has no rate of its own."""


@dataclass(frozen=True)
class Curve:
    """Seconds by size (bytes, or operations): straight lines from (0, 0) through the points, then of slope `slope`.

    Continuous and monotone. Invariants: as many sizes as seconds, sizes ascend from above 0, seconds do not descend,
    all are finite and >= 0.
    """

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    slope: float

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.seconds):
            raise ValueError(f"a curve has {len(self.sizes)} sizes and {len(self.seconds)} seconds")

        steps = [b - a for a, b in zip((0.0, *self.sizes), self.sizes, strict=False)]
        if not all(isfinite(step) and step > 0 for step in steps):
            raise ValueError(
                f"a curve's sizes must be finite and ascend from above 0, got {self.sizes}"
            )

        rises = [b - a for a, b in zip((0.0, *self.seconds), self.seconds, strict=False)]
        if not all(isfinite(rise) and rise >= 0 for rise in rises):
            raise ValueError(
                f"a curve's seconds must be finite, >= 0 and not descend, got {self.seconds}"
            )

        if not (isfinite(self.slope) and self.slope >= 0):
            raise ValueError(f"a curve's slope must be finite and >= 0, got {self.slope}")

    def time_s(self, size: float) -> float:
        """Seconds at `size` (>= 0)."""
        position = bisect_right(self.sizes, size)
        low_size, low = (
            (self.sizes[position - 1], self.seconds[position - 1]) if position else (0.0, 0.0)
        )
        if position == len(self.sizes):
            return low + (size - low_size) * self.slope
        share = (size - low_size) / (self.sizes[position] - low_size)
        return low + share * (self.seconds[position] - low)

    def slower(self, factor: float) -> Curve:
        """The curve that takes `factor` times as long at every size."""
        return Curve(self.sizes, tuple(time * factor for time in self.seconds), self.slope * factor)

    def times_s(self, sizes: Floats) -> Floats:
        """`time_s` of each."""
        if not self.sizes:
            return sizes * self.slope
        inside = np.interp(sizes, (0.0, *self.sizes), (0.0, *self.seconds))
        return inside + np.maximum(0.0, sizes - self.sizes[-1]) * self.slope


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

    @property
    def sizes(self) -> tuple[float, float, float]:
        """All three."""
        return self.m, self.n, self.k

    def stretch(self, m: Number, n: Number, k: Number) -> Number:
        """How many times as long as at the peak the product takes: (1 + m0 / m) (1 + n0 / n) (1 + k0 / k)."""
        return (1.0 + self.m / m) * (1.0 + self.n / n) * (1.0 + self.k / k)


@dataclass(frozen=True)
class Packing:
    """What a convolution takes beside its multiplications, as products: nothing for many channels, most for few.

    It is the product of m patches of k elements with a window of k elements for each of n channels. Kernels lay patches
    out for that: `patches` for each of their elements, `places` for each patch, `windows` for each element of the
    window, `depth` for each of a patch's.

        seconds = 2 b (m n k + patches m k + windows n k + places m + depth k) / peak

    Monotone and continuous. Invariant: all are finite and >= 0.

    Reference: Chellapilla, Puri and Simard 2006, "High performance convolutional neural networks for document
    processing" (convolutions unrolled into products). Measured for XLA on CPU: see `docs/results.md`, Accuracy.
    """

    patches: float
    windows: float
    places: float
    depth: float

    def __post_init__(self) -> None:
        if not all(isfinite(part) and part >= 0 for part in self.parts):
            raise ValueError(f"what packing takes must be finite and >= 0, got {self.parts}")

    @property
    def parts(self) -> tuple[float, float, float, float]:
        """All four."""
        return self.patches, self.windows, self.places, self.depth

    def stretch(self, m: Number, n: Number, k: Number) -> Number:
        """How many times as long as its multiplications alone the convolution takes."""
        return (
            1.0 + self.patches / n + self.windows / m + self.places / (n * k) + self.depth / (m * n)
        )


@dataclass(frozen=True)
class Rates:
    """What products of matrices reach of a peak, by their shape: b products of m x n results in k terms each.

        seconds = flops / (share(b m n, k) peak)

    A row of `shares` is of so many results, `least`^2 and twice as many with every row, a column of so many terms,
    `least` and twice as many with every column; in between, logarithms of all three are interpolated. So m, n and k
    are known up to `most`, b up to `batch`; beyond, and below `least`, shares are what they are there. Invariants:
    `least` is > 0, `shares` are > 0 and <= 1, of at least two rows and columns, each as long as the others. Of other
    types than `dtypes` nothing is known.
    """

    dtypes: tuple[str, ...]
    least: float
    shares: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        lengths = {len(row) for row in self.shares}
        if len(self.shares) < 2 or len(lengths) != 1 or lengths.pop() < 2:
            raise ValueError(
                "rates must have two rows and columns at least, each as long as the others"
            )
        if not all(0 < share <= 1 for row in self.shares for share in row):
            raise ValueError(f"shares of a peak must be > 0 and <= 1, got {self.shares}")
        if not (isfinite(self.least) and self.least > 0):
            raise ValueError(f"the least size must be finite and > 0, got {self.least}")

    @property
    def most(self) -> float:
        """The largest m, n and k that is known."""
        return self.least * 2 ** (len(self.shares[0]) - 1)

    @property
    def batch(self) -> float:
        """The largest b that is known."""
        return max(1.0, 2 ** (len(self.shares) - 1) * (self.least / self.most) ** 2)

    @cached_property
    def _logarithms(self) -> Floats:
        return np.log(self.shares)

    def share(self, flops: Number, dims: tuple[Number, Number, Number]) -> Number:
        """The share that products of `flops` and of these m, n, k reach; all of them > 0."""
        m, n, k = dims
        batch = np.clip(flops / (2.0 * m * n * k), 1.0, self.batch)
        rows, columns, terms = (np.clip(size, self.least, self.most) for size in dims)
        table = self._logarithms
        row = np.clip(np.log2(batch * rows * columns / self.least**2), 0.0, len(table) - 1.0)
        column = np.log2(terms / self.least)

        above = np.minimum(row.astype(np.int64), len(table) - 2)
        left = np.minimum(column.astype(np.int64), table.shape[1] - 2)
        down = row - above
        right = column - left
        upper = (1.0 - right) * table[above, left] + right * table[above, left + 1]
        lower = (1.0 - right) * table[above + 1, left] + right * table[above + 1, left + 1]
        return cast(Number, np.exp((1.0 - down) * upper + down * lower))


@dataclass(frozen=True)
class Reach:
    """What products reach of a peak: a share of it, and not from the start.

        seconds = start_s + flops / (share peak)

    Filling and emptying the units takes `start_s` of every product, however small. Products of matrices whose dims are
    told reach what `rates` say. Invariants: 0 < share <= 1, start_s >= 0 and finite.
    """

    share: float
    start_s: float
    rates: Rates | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"the share of a peak must be > 0 and <= 1, got {self.share}")
        if not (isfinite(self.start_s) and self.start_s >= 0):
            raise ValueError(f"start_s must be finite and >= 0, got {self.start_s}")

    def time_s(
        self,
        flops: Number,
        peak_flops_per_s: float,
        dims: tuple[Number, Number, Number] | None = None,
    ) -> Number:
        """Seconds of a product of `flops`, of matrices if their `dims` are told; none without any."""
        if dims is not None and self.rates is not None:
            return flops / (self.rates.share(flops, dims) * peak_flops_per_s)
        return self.start_s * (flops > 0) + flops / (self.share * peak_flops_per_s)


Curves = Mapping[str, Mapping[str, Curve]]


@dataclass(frozen=True)
class Efficiency:
    """What a device reaches.

    * `products`: for each element type the half sizes of products of matrices; none: the peak at any size.
    * `reach`: what products of any type reach of its peak, where they have no `work`; None: all of it.
    * `convolutions`: for each kind of convolution what packing takes; none: nothing.
    * `work`: seconds by the number of operations of a kind (JAX's names of primitives, `OTHER`), for each element type.
      One rate is a curve without points. What is no product has one operation for every element.
    * `memory`: seconds of a kernel by the bytes that it reads and writes; None: bytes / bandwidth.
    * `fresh`: seconds by the bytes that are touched for the first time since the system gave them; None: nothing. Each
      call pays for what it allocates anew, on processors that is all temporary memory.
    * `runs`: for each of `PICKING` the seconds of one run, bytes that lie together and are picked out of many, by the
      bytes of it: short ones wait for memory, and not for its bandwidth. None: nothing.

    Invariant: every kind of `work` has a curve for float32, and none of them is 0 everywhere.
    """

    products: Mapping[str, HalfSizes] = field(default_factory=dict[str, HalfSizes], hash=False)
    work: Curves = field(default_factory=dict[str, Mapping[str, Curve]], hash=False)
    memory: Curve | None = None
    fresh: Curve | None = None
    convolutions: Mapping[str, Packing] = field(default_factory=dict[str, Packing], hash=False)
    runs: Mapping[str, Curve] = field(default_factory=dict[str, Curve], hash=False)
    reach: Reach | None = None

    def __post_init__(self) -> None:
        for kind, by_dtype in self.work.items():
            if "float32" not in by_dtype:
                raise ValueError(
                    f"work of {kind!r} has none for float32, to which other types fall back"
                )
            for dtype, curve in by_dtype.items():
                if not curve.slope > 0:
                    raise ValueError(
                        f"work[{kind}][{dtype}] must take time, its slope is {curve.slope}"
                    )

    def of(self, kind: str, dtype: str) -> Curve | None:
        """Seconds by the operations of `kind`; None: at the peak. A type without a curve takes that of float32.

        A kind "family:member" without one is as its family.
        """
        family = kind.partition(":")[0]
        by_dtype = self.work.get(kind, self.work.get(family))
        if by_dtype is None and family not in PRODUCTS:
            by_dtype = self.work.get(OTHER)
        return None if by_dtype is None else by_dtype.get(dtype, by_dtype["float32"])

    def run(self, kind: str) -> Curve | None:
        """Seconds of one run by its bytes, for a gather or any scatter; None: nothing is known."""
        return self.runs.get(PICKING[1] if kind.startswith("scatter") else kind)

    def packing(self, kind: str) -> Packing | None:
        """What packing takes of a kind of convolution; None: nothing. One without an own is as its family."""
        return self.convolutions.get(kind, self.convolutions.get(kind.partition(":")[0]))


def product_dims(
    left: Number, right: Number, out: Number, operations: Number
) -> tuple[Number, Number, Number]:
    """(m, n, k) of lhs[b, m, k] . rhs[b, k, n], from the elements of both and of the result, and from 2 b m n k."""
    pairs = operations / 2.0
    return pairs / right, pairs / left, pairs / out


def convolution_elements(
    window: Number, out: Number, channels: Number, operations: Number
) -> tuple[Number, Number, Number]:
    """Of a convolution as a product: the elements of its patches, unrolled, of its window and of its result.

    `channels` are those of the result that read the same channels of the image: all, over the number of groups.
    `operations` are two for each multiplication.
    """
    return operations / 2.0 / channels, window, out


def slowest_curve(curves: tuple[Curve, ...]) -> Curve:
    """The curve that is nowhere below any of these: their largest at the sizes of all of them."""
    sizes = tuple(sorted({size for curve in curves for size in curve.sizes}))
    seconds = tuple(max(curve.time_s(size) for curve in curves) for size in sizes)
    return Curve(sizes, seconds, max(curve.slope for curve in curves))


def slowest_packing(packings: Sequence[Packing]) -> Packing:
    """What packing takes at most."""
    return Packing(
        *(max(parts) for parts in zip(*[packing.parts for packing in packings], strict=True))
    )
