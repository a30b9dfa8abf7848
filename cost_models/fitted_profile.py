"""The profile that samples give: what was measured fitted, what was not taken from a cluster that is like it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Literal

from cost_models.cluster import Cluster
from cost_models.curves import CONVOLUTIONS, PICKING, Curve
from cost_models.fit import (
    FittedTerms,
    Sample,
    fit_collectives,
    fit_convolutions,
    fit_fresh,
    fit_link,
    fit_moving,
    fit_products,
    fit_runs,
    fit_work,
)
from cost_models.profile import (
    Amount,
    ClusterProfile,
    DeviceProfile,
    Figure,
    HalfSizesProfile,
    LevelProfile,
    Obtained,
    PackingProfile,
    PointProfile,
    TermsProfile,
    WorkPointProfile,
    WorkProfile,
    build_cluster,
)
from cost_models.topology import Level, Link, Topology


@dataclass(frozen=True)
class Machine:
    """What is known of the devices before anything is measured.

    `levels` are names and sizes, outermost first. `shared`: all devices share one machine. `how` says in words on what
    and with what was measured. `like`: a cluster that is taken for what is not measured; None: numbers are assumed.
    `compiler`: as in a device's profile.
    """

    name: str
    device: str
    levels: tuple[tuple[str, int], ...]
    memory_bytes: float
    shared: bool
    how: str
    day: date
    like: Cluster | None = None
    compiler: Literal["", "xla_cpu", "xla_tpu"] = ""

    @property
    def topology(self) -> Topology:
        """Its levels, with links of no meaning."""
        return Topology(tuple(Level(name, size, Link(0.0, 1.0)) for name, size in self.levels))

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self.topology.device_count


def fitted_profile(samples: Sequence[Sample], machine: Machine) -> ClusterProfile:
    """The profile of `machine`, every number with how it was obtained.

    Raises:
      ValueError: if no kernel that moves bytes, or no product of float32 matrices, was measured.
    """
    terms = fit_collectives([s for s in samples if s.what == "collective"], machine.topology)
    levels = [_level(position, samples, terms, machine) for position in range(len(machine.levels))]
    return ClusterProfile(name=machine.name, device=_device(samples, machine), levels=levels)


def fitted_cluster(profile: ClusterProfile) -> Cluster:
    """The cluster of a profile that `fitted_profile` made."""
    assert isinstance(profile.device, DeviceProfile)
    return build_cluster(profile.name, profile, profile.device, profile.sizes)


def _device(samples: Sequence[Sample], machine: Machine) -> DeviceProfile:
    """The device; of shared ones the numbers are those of all of them together."""
    part = machine.device_count if machine.shared else 1
    launch_s, memory = fit_moving(s for s in samples if s.what == "moving")
    products = _by_kind(samples, "product")
    works = _by_kind(samples, "work")
    fits = {dtype: fit_products(mine, launch_s, memory) for (_, dtype), mine in products.items()}
    if "float32" not in fits:
        raise ValueError("no product of float32 matrices was measured, so there is no peak")

    counts = {dtype: len(mine) for (_, dtype), mine in products.items()}
    work: dict[str, dict[str, WorkProfile]] = defaultdict(dict)
    for dtype, (_, curve) in fits.items():
        what = f"{counts[dtype]} products of {dtype} matrices"
        work["dot_general"][dtype] = _work(curve, part, what, machine)

    packing: dict[str, PackingProfile] = {}
    for (kind, dtype), mine in works.items():
        what = f"{len(mine)} programs of {kind} of {dtype}"
        if kind in CONVOLUTIONS:
            packed, curve = fit_convolutions(mine, launch_s, memory)
            amounts = {name: _amount(part, what, machine) for name, part in asdict(packed).items()}
            packing[kind] = PackingProfile(**amounts)
        else:
            curve = fit_work(mine, launch_s)
        work[kind][dtype] = _work(curve, part, what, machine)

    picked = {kind: mine for (kind, _), mine in _by_kind(samples, "picking").items()}
    fresh = fit_fresh(s for s in samples if s.what == "fresh")
    return DeviceProfile(
        name=machine.device,
        shared_by_all=machine.shared,
        compiler=machine.compiler,
        memory_bytes=_figure(machine.memory_bytes, "what the system reports", machine, "measured"),
        memory_bandwidth_bytes_per_s=_figure(part / memory.slope, "the largest arrays", machine),
        launch_s=_figure(max(launch_s, 1e-9), "what is left of the smallest arrays", machine),
        peak_flops_per_s={
            d: _figure(part / curve.slope, f"{counts[d]} products of {d} matrices", machine)
            for d, (_, curve) in fits.items()
        },
        half_sizes={
            d: HalfSizesProfile(
                **{
                    n: _amount(getattr(half, n), f"products of {d} matrices", machine)
                    for n in "mnk"
                }
            )
            for d, (half, _) in fits.items()
        },
        convolutions=packing,
        work={kind: by_dtype for kind, by_dtype in work.items() if "float32" in by_dtype},
        memory=_points(
            memory, part, "kernels that read and write so much, less the launch", machine
        ),
        fresh=[]
        if fresh is None
        else _points(fresh, part, "results in new memory, less results in old", machine),
        runs={
            kind: _runs(kind, mine, launch_s, part, machine)
            for kind in PICKING
            if (mine := picked.get(kind))
        },
    )


def _runs(
    kind: str, samples: Sequence[Sample], launch_s: float, part: int, machine: Machine
) -> list[PointProfile]:
    """What a run takes; of shared devices one of all the runs that they pick."""
    curve = fit_runs(samples, launch_s)
    what = f"{len(samples)} programs of {kind}, rows at random, less the launch"
    placed = zip(curve.sizes, curve.seconds, strict=True)
    return [PointProfile(size_bytes=n, seconds=_figure(s / part, what, machine)) for n, s in placed]


def _work(curve: Curve, part: int, what: str, machine: Machine) -> WorkProfile:
    placed = zip(curve.sizes, curve.seconds, strict=True)
    points = [
        WorkPointProfile(operations=_rounded(n * part), seconds=_figure(seconds, what, machine))
        for n, seconds in placed
        if seconds > 0
    ]
    return WorkProfile(rate_per_s=_figure(part / curve.slope, what, machine), points=points)


def _by_kind(samples: Sequence[Sample], what: str) -> dict[tuple[str, str], list[Sample]]:
    found: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.what == what:
            found[sample.kind, sample.dtype].append(sample)
    return dict(sorted(found.items()))


def _level(
    position: int, samples: Sequence[Sample], terms: Sequence[FittedTerms], machine: Machine
) -> LevelProfile:
    name, size = machine.levels[position]
    collectives = [s for s in samples if s.what == "collective"]
    link = fit_link(collectives, machine.topology, name)
    like = (
        None
        if machine.like is None
        else next((x for x in machine.like.topology.levels if x.name == name), None)
    )
    obtained: Obtained = "fitted"
    why = "all-reduces over this level; the latency is that of a tree"
    if link is None:
        obtained = "assumed"
        why = (
            "no collective was measured on this level"
            if size > 1
            else "there is one device, and no link"
        )
        link = (
            (1e-6, 1e9) if like is None else (like.link.latency_s, like.link.bandwidth_bytes_per_s)
        )
        why = why if like is None else f"{why}; as in {machine.like.name if machine.like else ''}"

    return LevelProfile(
        name=name,
        size=size,
        latency_s=_amount_or_figure(link[0], why, machine, obtained),
        bandwidth_bytes_per_s=_figure(link[1], why, machine, obtained),
        collectives=[_terms(one, machine) for one in terms if one.level == name],
    )


def _terms(fitted: FittedTerms, machine: Machine) -> TermsProfile:
    what = f"{fitted.kind} in groups of {fitted.members}"
    return TermsProfile(
        kind=fitted.kind,
        members=fitted.members,
        alpha_s=_amount(fitted.alpha_s, f"{what}, the smallest messages", machine),
        gamma_s_per_byte=_amount(fitted.local.slope, f"{what}, the largest messages", machine),
        beta_s_per_byte=_amount(fitted.beta_s_per_byte, f"{what}, beside other groups", machine),
        local=_points(fitted.local, 1, what, machine),
    )


def _points(curve: Curve, part: int, what: str, machine: Machine) -> list[PointProfile]:
    """The points of a curve; those that take no time are left out, as a straight line leads there, too."""
    placed = zip(curve.sizes, curve.seconds, strict=True)
    return [
        PointProfile(
            size_bytes=_rounded(size * part), seconds=_figure(seconds, what, machine, "measured")
        )
        for size, seconds in placed
        if seconds > 0
    ]


def _figure(value: float, what: str, machine: Machine, obtained: Obtained = "fitted") -> Figure:
    return Figure(
        value=_rounded(value), source=_source(what, machine), date=machine.day, obtained=obtained
    )


def _amount(value: float, what: str, machine: Machine) -> Amount:
    return Amount(
        value=_rounded(value), source=_source(what, machine), date=machine.day, obtained="fitted"
    )


def _amount_or_figure(value: float, what: str, machine: Machine, obtained: Obtained) -> Figure:
    return _figure(max(value, 1e-9), what, machine, obtained)


def _source(what: str, machine: Machine) -> str:
    return f"{machine.how}: {what}"


def _rounded(value: float) -> float:
    """To four digits: more were never measured."""
    return float(f"{value:.4g}")
