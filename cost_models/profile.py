"""Profile files: the TOML in which devices and clusters are written down, every number with its source and date."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from math import prod
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cost_models.cluster import Cluster, slowest_cluster
from cost_models.compute import PCIE_3_BYTES_PER_S, Device
from cost_models.curves import Curve, Efficiency, HalfSizes, Packing, Rates, Reach
from cost_models.overlap import Overlap
from cost_models.terms import CollectiveKind, Terms
from cost_models.topology import Level, LevelKind, Link, Topology

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]
Obtained = Literal["measured", "fitted", "data sheet", "published", "derived", "assumed"]
"""How a number was come by: measured by its author; fitted to such measurements; stated by the vendor; published by
others; computed from stated numbers; assumed for want of any. The source says the rest."""


class Strict(BaseModel):
    """Base of all parts of a profile: no unknown fields, no conversions."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Figure(Strict):
    """A number > 0 in base units, where it is from, when that was read or measured, and how it was obtained.

    `relative_error` is how far off it may be (one standard error), if that is known better than of most numbers that
    were obtained so: see `cost_models.errors`.
    """

    value: PositiveFloat
    source: Name
    date: date
    obtained: Obtained
    relative_error: PositiveFloat | None = None


class Count(Strict):
    """A whole number >= 1, with all that a `Figure` has."""

    value: Annotated[int, Field(ge=1)]
    source: Name
    date: date
    obtained: Obtained


class OverlapProfile(Strict):
    """How computing and communicating slow each other. See `Overlap`; both figures are >= 1."""

    computing_slowdown: Figure
    communicating_slowdown: Figure

    @model_validator(mode="after")
    def _check(self) -> OverlapProfile:
        self.overlap()
        return self

    def overlap(self) -> Overlap:
        """The numbers alone."""
        return Overlap(self.computing_slowdown.value, self.communicating_slowdown.value)


class Amount(Strict):
    """A number >= 0, with all that a `Figure` has."""

    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    source: Name
    date: date
    obtained: Obtained
    relative_error: PositiveFloat | None = None


class PointProfile(Strict):
    """A point of a curve: the seconds that `size_bytes` take. See `Curve`."""

    size_bytes: PositiveFloat
    seconds: Figure


class WorkPointProfile(Strict):
    """A point of a curve: the seconds that so many operations take. See `Curve`."""

    operations: PositiveFloat
    seconds: Figure


class WorkProfile(Strict):
    """Operations per second of a kind: at any number, or after the last point of a curve where there are `points`."""

    rate_per_s: Figure
    points: list[WorkPointProfile] = []

    def curve(self, part: int) -> Curve:
        """The curve, for one of `part` devices that compute as much each at the same time."""
        sizes = tuple(point.operations / part for point in self.points)
        return Curve(
            sizes, tuple(point.seconds.value for point in self.points), part / self.rate_per_s.value
        )


class HalfSizesProfile(Strict):
    """See `HalfSizes`."""

    m: Amount
    n: Amount
    k: Amount


class Table(Strict):
    """Rows of numbers > 0, with all that a `Figure` has."""

    value: list[list[PositiveFloat]]
    source: Name
    date: date
    obtained: Obtained


class RatesProfile(Strict):
    """See `Rates`: rows of operations per second that products of the first of `dtypes` reach, others in proportion."""

    dtypes: Annotated[list[Name], Field(min_length=1)]
    least: Count
    flops_per_s: Table

    def rates(self, peaks: Mapping[str, float]) -> Rates:
        """The shares of the peak.

        Raises:
          ValueError: if there is no peak of the first type, or a rate is above it.
        """
        first = self.dtypes[0]
        if first not in peaks:
            raise ValueError(f"rates are of {first}, of which no peak is stated")
        rows = tuple(tuple(rate / peaks[first] for rate in row) for row in self.flops_per_s.value)
        return Rates(tuple(self.dtypes), float(self.least.value), rows)


class ReachProfile(Strict):
    """See `Reach`."""

    share: Amount
    start_s: Amount
    rates: RatesProfile | None = None

    def reach(self, peaks: Mapping[str, float]) -> Reach:
        """What products reach, on a device of these `peaks`."""
        rates = None if self.rates is None else self.rates.rates(peaks)
        return Reach(self.share.value, self.start_s.value, rates)


class PackingProfile(Strict):
    """See `Packing`."""

    patches: Amount
    windows: Amount
    places: Amount
    depth: Amount

    def packing(self) -> Packing:
        """What packing takes."""
        return Packing(self.patches.value, self.windows.value, self.places.value, self.depth.value)


class DeviceProfile(Strict):
    """A device file. See `Device` for the meaning of the numbers.

    `shared_by_all`: memory, memory bandwidth, peaks, rates and caches are those of one machine, which all devices of
    the cluster share: each gets its part, at the same time as the others. Without `overlap`, nothing is computed while
    anything is communicated.

    What a device reaches of its peaks is optional, see `Efficiency`: `products` of any type (`Reach`), `half_sizes` of
    products by element type, what `convolutions` pack by kind, `work` by kind of operation and element type, `memory`
    as points of a curve, which goes on at `memory_share` of the memory bandwidth (all of it, if not said), `fresh` and
    `runs` (by kind, of one run) as points of curves that go on as up to the last. Without any of them, all.
    `compiler`: who compiles for it, where that is known (see `Device`). `host_bandwidth_bytes_per_s`: without it, that
    of PCI Express 3.0.
    """

    name: Name
    memory_bytes: Figure
    memory_bandwidth_bytes_per_s: Figure
    launch_s: Figure
    peak_flops_per_s: dict[Name, Figure]
    shared_by_all: bool = False
    compiler: Literal["", "xla_cpu", "xla_gpu", "xla_tpu"] = ""
    host_bandwidth_bytes_per_s: Figure | None = None
    overlap: OverlapProfile | None = None
    products: ReachProfile | None = None
    half_sizes: dict[Name, HalfSizesProfile] = {}
    convolutions: dict[Name, PackingProfile] = {}
    work: dict[Name, dict[Name, WorkProfile]] = {}
    memory: list[PointProfile] = []
    memory_share: Figure | None = None
    fresh: list[PointProfile] = []
    runs: dict[
        Literal["gather", "scatter-add"], Annotated[list[PointProfile], Field(min_length=1)]
    ] = {}

    @model_validator(mode="after")
    def _check(self) -> DeviceProfile:
        self.device(1)
        return self

    def device(self, device_count: int) -> Device:
        """The device, as one of `device_count`."""
        part = device_count if self.shared_by_all else 1
        host = self.host_bandwidth_bytes_per_s

        return Device(
            name=self.name,
            memory_bytes=self.memory_bytes.value / part,
            memory_bandwidth_bytes_per_s=self.memory_bandwidth_bytes_per_s.value / part,
            peak_flops_per_s={
                dtype: peak.value / part for dtype, peak in self.peak_flops_per_s.items()
            },
            launch_s=self.launch_s.value,
            overlap=None if self.overlap is None else self.overlap.overlap(),
            efficiency=self._efficiency(part),
            compiler=self.compiler,
            host_bandwidth_bytes_per_s=PCIE_3_BYTES_PER_S if host is None else host.value / part,
        )

    def _efficiency(self, part: int) -> Efficiency | None:
        """What one of `part` that share the device reaches; None if the file says nothing of that."""
        if not (
            self.products
            or self.half_sizes
            or self.convolutions
            or self.work
            or self.memory
            or self.memory_share
            or self.fresh
            or self.runs
        ):
            return None

        last = self.fresh[-1] if self.fresh else None
        share = 1.0 if self.memory_share is None else self.memory_share.value
        peaks = {dtype: peak.value for dtype, peak in self.peak_flops_per_s.items()}
        return Efficiency(
            {
                dtype: HalfSizes(h.m.value, h.n.value, h.k.value)
                for dtype, h in self.half_sizes.items()
            },
            {
                kind: {d: work.curve(part) for d, work in mine.items()}
                for kind, mine in self.work.items()
            },
            _curve(self.memory, part / (share * self.memory_bandwidth_bytes_per_s.value), part)
            if self.memory or self.memory_share
            else None,
            _curve(self.fresh, part * last.seconds.value / last.size_bytes, part) if last else None,
            {kind: packing.packing() for kind, packing in self.convolutions.items()},
            {kind: _run(points, part) for kind, points in self.runs.items()},
            None if self.products is None else self.products.reach(peaks),
        )


class TermsProfile(Strict):
    """Of a kind of collective what was measured on a level in groups of `members`. See `Terms`.

    `local` are points of a curve, which goes on with `gamma_s_per_byte`; without points it is that line.
    """

    kind: CollectiveKind
    members: Annotated[int, Field(ge=2)]
    alpha_s: Amount
    gamma_s_per_byte: Amount
    beta_s_per_byte: Amount
    local: list[PointProfile] = []

    def terms(self) -> Terms:
        """The terms."""
        local = _curve(self.local, self.gamma_s_per_byte.value)
        return Terms(self.kind, self.members, self.alpha_s.value, local, self.beta_s_per_byte.value)


class LevelProfile(Strict):
    """A level of a cluster file. See `Level` for the meaning of kind, latency and bandwidth.

    `bandwidth_of`: "unit": the bandwidth of one unit, whatever is in it; "device": of each device in a unit, which
    has a port of its own (a server of 8 sends 8 times as much); "all": of all devices of the cluster together.
    A torus axis wraps if its size is `wraps_at`; with `wraps_in_multiples_of`, if the size of every axis that has it is
    a multiple of it. `start_s`: see `Level`. `collectives` are those that were measured; the others go by formulas.
    """

    name: Name
    size: Annotated[int, Field(ge=1)]
    kind: LevelKind = "switch"
    latency_s: Figure
    bandwidth_bytes_per_s: Figure
    bandwidth_of: Literal["unit", "device", "all"] = "unit"
    max_size: Count | None = None
    wraps_at: Count | None = None
    wraps_in_multiples_of: Count | None = None
    start_s: Amount | None = None
    collectives: list[TermsProfile] = []

    @model_validator(mode="after")
    def _check(self) -> LevelProfile:
        for terms in self.collectives:
            terms.terms()
        return self

    def level(
        self, size: int, devices_inside: int, device_count: int, whole: bool = False
    ) -> Level:
        """The level, with `size` units of `devices_inside` devices each, in a cluster of `device_count`.

        `whole`: all axes are the multiples that make them wrap.
        """
        factor = {
            "unit": 1.0,
            "device": float(devices_inside),
            "all": devices_inside / device_count,
        }
        bandwidth = self.bandwidth_bytes_per_s.value * factor[self.bandwidth_of]
        wrap = (self.wraps_at is not None and size == self.wraps_at.value) or (
            self.wraps_in_multiples_of is not None and whole
        )
        terms = tuple(measured.terms() for measured in self.collectives)
        start_s = 0.0 if self.start_s is None else self.start_s.value

        return Level(
            self.name,
            size,
            Link(self.latency_s.value, bandwidth),
            self.kind,
            wrap,
            terms=terms,
            start_s=start_s,
        )


class ClusterProfile(Strict):
    """A cluster file: a device (its name, a file beside this one, or a table) and levels, outermost first.

    With `inside` instead of a device, the levels stand around whole clusters (names, or files beside this one): one
    for all units of the innermost of these levels, or a list with one for each. The clusters of a list have the same
    levels in the same sizes; their devices and links may be of several generations, and the slowest sets the pace.

    `pattern` says which names mean the same devices and links with other sizes: "{sizes}xh100" stands for 8xh100,
    4x8xh100, ... Fewer sizes than levels leave out the outermost switch levels. `device_kinds` are the names that
    JAX gives such devices; of processors, which are all "cpu" to JAX, "cpu" with vendor and family as Linux has them.
    `relative_errors` are those of numbers that were obtained so, and of the formulas, where the usual ones
    (`cost_models.errors`) do not hold.
    """

    name: Name
    device: str | DeviceProfile | None = None
    inside: str | Annotated[list[str], Field(min_length=1)] | None = None
    levels: Annotated[list[LevelProfile], Field(min_length=1)]
    pattern: Annotated[str, Field(pattern=r"\{sizes\}")] | None = None
    device_kinds: list[Name] = []
    relative_errors: dict[Obtained | Literal["formula"], PositiveFloat] = {}

    @model_validator(mode="after")
    def _check(self) -> ClusterProfile:
        if (self.device is None) == (self.inside is None):
            raise ValueError(
                "a cluster has either a device or clusters inside: give `device`, or `inside`"
            )
        if isinstance(self.inside, list) and self.pattern is not None:
            raise ValueError(
                "a cluster with a list of clusters inside has one size: take `pattern` out"
            )
        return self

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the levels as written."""
        return tuple(level.size for level in self.levels)


def build_cluster(
    name: str, profile: ClusterProfile, device: DeviceProfile, sizes: tuple[int, ...]
) -> Cluster:
    """The cluster with these sizes of the innermost levels of `profile`.

    Raises:
      ValueError: if there are more sizes than levels, a torus axis is left out, or a level is too large.
    """
    kept = profile.levels[len(profile.levels) - len(sizes) :]
    left_out = profile.levels[: len(profile.levels) - len(sizes)]
    if len(sizes) > len(profile.levels) or any(level.kind == "torus" for level in left_out):
        names = " x ".join(level.name for level in profile.levels)
        raise ValueError(f"{name!r} has {len(sizes)} sizes; {profile.name!r} is {names}")
    count = prod(sizes)
    topology = Topology(_levels(name, kept, sizes, 1, count))
    return Cluster(name, device.device(count), topology)


def build_around(
    name: str, profile: ClusterProfile, sizes: tuple[int, ...], inside: tuple[Cluster, ...]
) -> Cluster:
    """The cluster whose levels of `profile`, in these sizes, stand around `inside`: one for all units, or one each.

    Raises:
      ValueError: if there are too few or too many clusters inside, they are unlike, or a level is too large.
    """
    units = prod(sizes)
    if len(inside) not in (1, units):
        raise ValueError(
            f"{name!r} lists {len(inside)} clusters inside for {units} units; list one, or one for each"
        )
    inner = slowest_cluster(name, inside)
    count = units * inner.device_count
    levels = _levels(name, profile.levels, sizes, inner.device_count, count)
    return Cluster(name, inner.device, Topology((*levels, *inner.topology.levels)))


def _curve(points: list[PointProfile], slope: float, part: int = 1) -> Curve:
    """The curve through the points, for one of `part` devices that move as much each at the same time."""
    sizes = tuple(point.size_bytes / part for point in points)
    return Curve(sizes, tuple(point.seconds.value for point in points), slope)


def _run(points: list[PointProfile], part: int) -> Curve:
    """The seconds of one run, on one of `part` devices that pick as many each at the same time."""
    sizes = tuple(p.size_bytes for p in points)
    seconds = tuple(part * p.seconds.value for p in points)
    return Curve(sizes, seconds, seconds[-1] / sizes[-1])


def figures_in(profile: BaseModel, path: str = "") -> Iterator[tuple[str, Figure | Amount | Count]]:
    """All numbers of a profile with the dotted path of their field; levels by name."""
    for field in type(profile).model_fields:
        yield from _figures(getattr(profile, field), f"{path}{field}")


def _figures(value: object, path: str) -> Iterator[tuple[str, Figure | Amount | Count]]:
    if isinstance(value, Figure | Amount | Count):
        yield path, value
    elif isinstance(value, BaseModel):
        yield from figures_in(value, f"{path}.")
    elif isinstance(value, dict):
        for key, item in cast("dict[str, object]", value).items():
            yield from _figures(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            yield from _figures(item, f"{path}{_label(item)}")


def _label(item: object) -> str:
    """What tells an item of a list from the others, with a dot before it."""
    match item:
        case LevelProfile():
            return f".{item.name}"
        case TermsProfile():
            return f".{item.kind}.{item.members}"
        case PointProfile():
            return f".{item.size_bytes:g}"
        case WorkPointProfile():
            return f".{item.operations:g}"
        case _:
            return ""


def _levels(
    name: str, kept: list[LevelProfile], sizes: tuple[int, ...], devices_inside: int, count: int
) -> tuple[Level, ...]:
    """The levels in these sizes, around units of `devices_inside`, in a cluster of `count` devices."""
    for level, size in zip(kept, sizes, strict=True):
        if size < 1 or (level.max_size is not None and size > level.max_size.value):
            most = (
                ""
                if level.max_size is None
                else f" and at most {level.max_size.value} ({level.max_size.source})"
            )
            raise ValueError(
                f"{name!r}: level {level.name!r} has size {size}; it must be at least 1{most}"
            )

    multiples = [
        (level.wraps_in_multiples_of, size) for level, size in zip(kept, sizes, strict=True)
    ]
    whole = all(part is None or size % part.value == 0 for part, size in multiples)
    inside = [prod(sizes[i + 1 :]) * devices_inside for i in range(len(sizes))]
    return tuple(
        level.level(size, n, count, whole)
        for level, size, n in zip(kept, sizes, inside, strict=True)
    )
