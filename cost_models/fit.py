"""Fit: the numbers of a profile from measured times, by robust least squares on their logarithms. Knows no JAX.

Every residual is ln(model / measured), so that all sizes count alike; outliers count by their distance and not by its
square (soft L1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from cost_models.cluster import Cluster
from cost_models.collective import collective_time_s
from cost_models.compute import compute_time_s, fresh_time_s
from cost_models.curves import Curve, HalfSizes, Packing, product_dims
from cost_models.groups import group
from cost_models.terms import CollectiveKind, wire_bytes
from cost_models.topology import Topology

Floats = NDArray[np.float64]
Elements = tuple[float, float, float]
SampleKind = Literal["moving", "fresh", "picking", "product", "work", "collective"]
_HELD = 0.03  # how weakly neighbouring rates are held together, beside residuals
_OUTLIER = 0.1  # a residual of 10 %: beyond it, its distance counts, not its square


@dataclass(frozen=True)
class Sample:
    """One measured time of one device, or of one collective, while all devices do the same.

    | what | kind | operations | size_bytes |
    |---|---|---|---|
    | moving | any | | read and written |
    | product | a primitive | of all `elements` (of both operands and the result) | read and written |
    | work | a kind | of convolutions `elements` as `convolution_elements` says | read and written |
    | fresh | any | | touched for the first time |
    | picking | one of `PICKING` | runs that are picked | read and written |
    | collective | all_reduce, ... | | the larger of a device's before and after |

    A collective ran over `axes` of a mesh of `mesh` sizes. `run_bytes` are those of each run that was picked.
    """

    what: SampleKind
    kind: str
    dtype: str
    size_bytes: float
    time_s: float
    operations: float = 0.0
    elements: Elements | None = None
    mesh: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    run_bytes: float = 0.0


@dataclass(frozen=True)
class Residual:
    """How far a model is from one sample: `predicted_s` / the sample's time - 1."""

    sample: Sample
    predicted_s: float

    @property
    def error(self) -> float:
        """Relative, > 0 where the model says more."""
        return self.predicted_s / self.sample.time_s - 1.0


@dataclass(frozen=True)
class FittedTerms:
    """What was fitted to the samples of one collective on one level, see `Terms`."""

    level: str
    kind: CollectiveKind
    members: int
    alpha_s: float
    local: Curve
    beta_s_per_byte: float


def fit_moving(samples: Iterable[Sample]) -> tuple[float, Curve]:
    """The launch, and the curve of a kernel's time by the bytes that it moves.

    The launch is the time of the smallest kernels; the curve goes through the median of what is left at every size,
    made to ascend, and on from the last at its bandwidth.

    Raises:
      ValueError: if there are no samples of sizes > 0.
    """
    sizes, medians = _ascending((s.size_bytes, s.time_s) for s in samples if s.size_bytes > 0)
    if not sizes:
        raise ValueError("no kernel that moves bytes was measured, so there is no bandwidth")
    launch_s = _at_zero(sizes, medians)
    return launch_s, _curve(sizes, medians - launch_s)


def fit_products(
    samples: Sequence[Sample], launch_s: float, memory: Curve
) -> tuple[HalfSizes, Curve]:
    """The half sizes of products of one element type, and the seconds of large ones by the number of operations.

    Products with a vector (a dim of 1) are left out where there are others: they are kernels of their own, which pack
    nothing, and would hide what thin matrices lose.

        time = max(work(2 b m n k) (1 + m0 / m) (1 + n0 / n) (1 + k0 / k), memory(bytes)) + launch

    The curve has a point for every four samples, at most five, in equal ratios: small products may run on fewer cores.
    Neighbouring rates are held together, weakly. The slope after the last point is 1 / peak.

    Raises:
      ValueError: if there are no samples.
    """
    if not samples:
        raise ValueError("no product of matrices was measured, so there is no peak")
    samples = [s for s in samples if min(_dims(s)) > 1.5] or samples
    m, n, k = np.array([_dims(s) for s in samples]).T
    found, curve = _stretched(
        samples, launch_s, memory, 3, lambda x: (1 + x[0] / m) * (1 + x[1] / n) * (1 + x[2] / k)
    )
    return HalfSizes(*found), curve


def fit_convolutions(
    samples: Sequence[Sample], launch_s: float, memory: Curve
) -> tuple[Packing, Curve]:
    """What packing takes of convolutions of one kind and element type, and the seconds of those of many channels.

        time = max(work(2 b m n k) (1 + patches / n + windows / m + places / (n k) + depth / (m n)), memory(bytes))
               + launch

    The curve is as in `fit_products`.

    Raises:
      ValueError: if there are no samples.
    """
    if not samples:
        raise ValueError("no convolution was measured, so there is no rate")
    m, n, k = np.array([_dims(s) for s in samples]).T
    shares = np.stack([1 / n, 1 / m, 1 / (n * k), 1 / (m * n)])
    # a part that these samples do not tell from the rate is none
    typical = np.median(shares, axis=1)
    found, curve = _stretched(
        samples, launch_s, memory, len(shares), lambda x: 1 + x @ shares, typical
    )
    return Packing(*found), curve


def _stretched(
    samples: Sequence[Sample],
    launch_s: float,
    memory: Curve,
    count: int,
    stretch: Callable[[Floats], Floats],
    held: Floats | float = 0.0,
) -> tuple[list[float], Curve]:
    """`count` numbers >= 0 of a stretch, held weakly to 0 as `held` weighs them, and the curve that it stretches."""
    operations = np.array([s.operations for s in samples])
    moving = memory.times_s(np.array([s.size_bytes for s in samples]))
    measured = np.array([s.time_s for s in samples])
    start = float(np.log(np.max(operations / measured)))
    knots = _equal_ratios(
        float(operations.min()), float(operations.max()), max(1, min(5, len(samples) // 4))
    )

    def residuals(x: Floats) -> Floats:
        busy = np.interp(operations, (0.0, *knots), (0.0, *(knots / np.exp(x[count:])))) * stretch(
            x[:count]
        )
        off = np.log((np.maximum(busy, moving) + launch_s) / measured)
        return np.concatenate([off, _HELD * np.diff(x[count:]), _HELD * held * x[:count]])

    lows = [0.0] * count + [start - 5] * len(knots)
    highs = [1e4] * count + [start + 5] * len(knots)
    found = _robust(residuals, [1.0] * count + [start] * len(knots), (lows, highs))
    seconds = np.maximum.accumulate(knots / np.exp(found[count:]))
    numbers = [float(x) if x > 1e-3 else 0.0 for x in found[:count]]
    return numbers, _curve(knots.tolist(), seconds) if len(knots) > 1 else Curve(
        (), (), float(seconds[0] / knots[0])
    )


def _dims(sample: Sample) -> tuple[float, float, float]:
    return product_dims(*(sample.elements or (1.0, 1.0, 1.0)), sample.operations)


def _equal_ratios(low: float, high: float, count: int) -> Floats:
    """`count` numbers in equal ratios that end with `high`; several begin with `low`."""
    return (
        high * (low / high) ** np.linspace(1.0, 0.0, count)
        if count > 1 and low < high
        else np.array([high])
    )


def fit_work(samples: Iterable[Sample], launch_s: float) -> Curve:
    """The seconds of one kind and element type by the number of operations, less the launch.

    The median at each number, made to ascend; one number gives a rate.

    Raises:
      ValueError: if there are no samples.
    """
    numbers, seconds = _ascending(
        (s.operations, max(s.time_s - launch_s, 0.05 * s.time_s)) for s in samples
    )
    if not numbers:
        raise ValueError("no operation of the kind was measured, so there is no rate")
    return (
        _curve(numbers, seconds)
        if len(numbers) > 1
        else Curve((), (), float(seconds[0]) / numbers[0])
    )


def fit_runs(samples: Iterable[Sample], launch_s: float) -> Curve:
    """The seconds of one run of a kind by its bytes, less the launch: the median at each size, made to ascend.

    Raises:
      ValueError: if there are no samples.
    """
    shares = (
        (s.run_bytes, max(s.time_s - launch_s, 0.05 * s.time_s) / s.operations) for s in samples
    )
    sizes, seconds = _ascending(shares)
    if not sizes:
        raise ValueError("no run of the kind was picked, so there is no time of one")
    return _curve(sizes, seconds)


def fit_fresh(samples: Iterable[Sample]) -> Curve | None:
    """The seconds by the bytes that are touched for the first time; None without samples that take time."""
    sizes, seconds = _ascending((s.size_bytes, s.time_s) for s in samples if s.time_s > 0)
    return _curve(sizes, seconds) if sizes else None


def fit_collectives(samples: Iterable[Sample], topology: Topology) -> tuple[FittedTerms, ...]:
    """The terms of every kind, level and number of members that was measured.

        time = alpha + local(S) + beta * wire bytes

    Beta is told from what the devices do themselves where groups of several forms cross a level that has others inside,
    so that wire bytes are not always the same share of S; on the innermost level it is 0, and `local` is all that grows
    with S. Of one kind and level the curves of all numbers of members are alike up to a factor: the copies are the same
    through the same caches. So one time that was disturbed, as some are by twice, is told from what a size takes.
    """
    by_kind: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        by_kind[_crossed(sample, topology).name, sample.kind].append(sample)
    found: list[FittedTerms] = []
    for (level, kind), mine in sorted(by_kind.items()):
        beta = 0.0 if level == topology.levels[-1].name else _beta(mine, topology)
        fitted = _alphas_and_locals(mine, [beta * _wire(s, topology) for s in mine])
        for members, (alpha, local) in sorted(fitted.items()):
            found.append(
                FittedTerms(level, cast("CollectiveKind", kind), members, alpha, local, beta)
            )
    return tuple(found)


def fit_link(
    samples: Sequence[Sample], topology: Topology, level: str
) -> tuple[float, float] | None:
    """Latency and bandwidth of the link of `level`, for collectives that were not measured; None without all-reduces.

    The bandwidth is the most that any all-reduce reached, the latency that of the tree of the shortest.
    """
    mine = [s for s in samples if s.kind == "all_reduce" and _crossed(s, topology).name == level]
    if not mine:
        return None
    shortest = min(mine, key=lambda s: s.time_s)
    rounds = 2 * max(1, int(np.ceil(np.log2(_members(shortest)))))
    return shortest.time_s / rounds, max(_wire(s, topology) / s.time_s for s in mine)


def residuals_of(samples: Iterable[Sample], cluster: Cluster) -> tuple[Residual, ...]:
    """What `cluster` says of each sample."""
    return tuple(Residual(sample, predicted_s(sample, cluster)) for sample in samples)


def predicted_s(sample: Sample, cluster: Cluster) -> float:
    """The seconds that `cluster` says the sample takes."""
    if sample.what == "fresh":
        return fresh_time_s(sample.size_bytes, cluster.device)

    if sample.what == "collective":
        members = group(cluster.topology, sample.mesh, sample.axes)
        return collective_time_s(cast("CollectiveKind", sample.kind), sample.size_bytes, members)

    size = sample.size_bytes
    if sample.what == "picking":
        runs = sample.operations, sample.run_bytes
        return compute_time_s(0.0, size, sample.dtype, cluster.device, kind=sample.kind, runs=runs)

    kind = "" if sample.what == "moving" else sample.kind
    operations = 0.0 if sample.what == "moving" else sample.operations
    return compute_time_s(
        operations, size, sample.dtype, cluster.device, kind=kind, elements=sample.elements
    )


def _alphas_and_locals(
    samples: Sequence[Sample], beside_s: Sequence[float]
) -> dict[int, tuple[float, Curve]]:
    """For every number of members what a message of no bytes would take, and the curve of what grows with the size.

        time - beside = alpha(members) + factor(members) rate(size) size

    `beside_s` is left out. Neighbouring rates are held together, weakly. One size alone is a line through 0.
    """
    seconds = np.array(
        [max(s.time_s - b, 1e-3 * s.time_s) for s, b in zip(samples, beside_s, strict=True)]
    )
    sizes, place = np.unique([s.size_bytes for s in samples], return_inverse=True)
    groups, group_of = np.unique([_members(s) for s in samples], return_inverse=True)
    if len(sizes) == 1:
        mine = [np.median(seconds[group_of == n], keepdims=True) for n in range(len(groups))]
        return {
            int(m): (0.0, _curve(sizes.tolist(), seen))
            for m, seen in zip(groups, mine, strict=True)
        }

    count = len(groups)

    def residuals(x: Floats) -> Floats:
        alphas = x[:count]
        factors = x[count : 2 * count]
        rates = x[2 * count :]
        growing = np.exp(factors[group_of] + rates[place]) * sizes[place]
        off = np.log((np.exp(alphas[group_of]) + growing) / seconds)
        return np.concatenate([off, _HELD * np.diff(rates), _HELD * factors])

    alphas = [float(np.log(seconds[group_of == n].min())) for n in range(count)]
    rate = float(np.log((seconds / sizes[place]).min()))
    start = [*alphas, *([0.0] * count), *([rate] * len(sizes))]
    lows = [*(a - 12 for a in alphas), *([-3.0] * count), *([rate - 12] * len(sizes))]
    highs = [*(a + 1 for a in alphas), *([3.0] * count), *([rate + 5] * len(sizes))]
    found = _robust(residuals, start, (lows, highs))
    local = np.maximum.accumulate(np.exp(found[2 * count :]) * sizes)
    return {
        int(m): (
            float(np.exp(found[n])),
            _curve(sizes.tolist(), float(np.exp(found[count + n])) * local),
        )
        for n, m in enumerate(groups)
    }


def _at_zero(sizes: Sequence[float], seconds: Floats) -> float:
    """Where the line through the first two points meets size 0, but not below 0; 0 if there is one point."""
    if len(sizes) < 2:
        return 0.0
    slope = float(seconds[1] - seconds[0]) / (sizes[1] - sizes[0])
    return max(0.0, float(seconds[0]) - slope * sizes[0])


def _ascending(points: Iterable[tuple[float, float]]) -> tuple[list[float], Floats]:
    """The sizes, ascending, and the median of the seconds at each, made not to descend."""
    by_size: dict[float, list[float]] = defaultdict(list)
    for size, seconds in points:
        by_size[size].append(seconds)
    sizes = sorted(by_size)
    medians = [median(by_size[size]) for size in sizes]
    return sizes, _pooled(np.array(medians, dtype=np.float64))


def _pooled(values: Floats) -> Floats:
    """The closest values to these, in logarithms, that do not descend: neighbours that do are averaged.

    Reference: Barlow and Brunk 1972, "The isotonic regression problem and its dual".
    """
    if not len(values):
        return values
    fitted: Any = optimize.isotonic_regression(np.log(np.maximum(values, 1e-12)))
    return np.where(values > 0, np.exp(fitted.x), 0.0)


def _curve(sizes: Sequence[float], seconds: Floats) -> Curve:
    """The curve through the points; the last slope is that of all that came before, so that it is no noise."""
    return Curve(
        tuple(map(float, sizes)), tuple(map(float, seconds)), float(seconds[-1]) / float(sizes[-1])
    )


def _beta(samples: Sequence[Sample], topology: Topology) -> float:
    """Seconds per wire byte by non-negative least squares of alpha, gamma S and beta wire bytes, relative."""
    wires = np.array([_wire(s, topology) for s in samples])
    sizes = np.array([s.size_bytes for s in samples])
    ratios = wires / sizes
    if ratios.max() < 1.2 * ratios.min():
        return 0.0

    measured = np.array([s.time_s for s in samples])

    def residuals(x: Floats) -> Floats:
        return np.log((np.exp(x[0]) + np.exp(x[1]) * sizes + np.exp(x[2]) * wires) / measured)

    slope = float(np.log(measured.max() / sizes.max()))
    start = [float(np.log(measured.min())), slope, slope]
    found = _robust(residuals, start, ([s - 12 for s in start], [s + 3 for s in start]))
    return (
        min(float(np.exp(found[2])), float((measured / wires).min()))
        if found[2] > start[2] - 6
        else 0.0
    )


def _robust(
    residuals: Callable[[Floats], Floats],
    start: Sequence[float],
    bounds: tuple[Sequence[float], Sequence[float]],
) -> Floats:
    library: Any = optimize
    return np.asarray(
        library.least_squares(
            residuals, start, bounds=bounds, loss="soft_l1", f_scale=_OUTLIER, x_scale="jac"
        ).x
    )


def _crossed(sample: Sample, topology: Topology) -> Any:
    members = group(topology, sample.mesh, sample.axes)
    return next(span for span in members.spans if span.sharing).level


def _wire(sample: Sample, topology: Topology) -> float:
    members = group(topology, sample.mesh, sample.axes)
    span = next(span for span in members.spans if span.sharing)
    return wire_bytes(cast("CollectiveKind", sample.kind), sample.size_bytes, members.size, span)


def _members(sample: Sample) -> int:
    return int(np.prod([sample.mesh[axis] for axis in sample.axes]))
