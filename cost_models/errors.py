"""Errors: how far off the numbers of a cluster may be, and what a cluster is whose numbers are that far off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from cost_models.cluster import Cluster, replace_link
from cost_models.compute import Device
from cost_models.overlap import Overlap
from cost_models.profile import Amount, Count, Figure, Obtained
from cost_models.terms import Terms
from cost_models.topology import Topology

RELATIVE_ERRORS: Mapping[Obtained, float] = {
    "measured": 0.05,
    "fitted": 0.1,
    "published": 0.2,
    "derived": 0.25,
    "data sheet": 0.3,
    "assumed": 0.5,
}
"""One standard error of a number, as a share of it, by how it was obtained: what is measured varies from run to run; a
fit has residuals; what others publish was measured elsewhere; no program reaches what a data sheet states. They are
judgements, not measurements: a profile that knows better says so (`relative_error`, `relative_errors`)."""
FORMULA_ERROR = 0.15
"""One standard error of what a formula says of one kernel or collective, where all its numbers are right: assumed. It
is the same wherever that kernel runs, and independent of that of others."""
FORMULA: Literal["formula"] = "formula"
_TIMES = ("launch_s", "latency_s")


def relative_errors(
    figures: Iterable[tuple[str, Figure | Amount | Count]],
    by_way: Mapping[Obtained | Literal["formula"], float],
) -> dict[str, float]:
    """The relative error of each of `figures`, by its path: its own, else by the way in which it was obtained.

    `by_way` stands before `RELATIVE_ERRORS`. Of two figures at one path (mixed generations) the larger counts.
    """
    found: dict[str, float] = {}
    for path, figure in figures:
        if isinstance(figure, Count):
            continue
        error = figure.relative_error or by_way.get(
            figure.obtained, RELATIVE_ERRORS[figure.obtained]
        )
        found[path] = max(error, found.get(path, 0.0))
    return found


def formula_error(cluster: Cluster) -> float:
    """The relative error of the formulas on `cluster`: its profile's, else `FORMULA_ERROR`."""
    return cluster.errors.get(FORMULA, FORMULA_ERROR)


def uncertain_figures(cluster: Cluster) -> dict[str, float]:
    """The relative error of every number of `cluster` that times depend on, by its path.

    The paths are those of `figures_of`: "device.peak_flops_per_s.bfloat16", "levels.server.latency_s". A number of
    which nothing is said is assumed.
    """
    device = cluster.device
    paths = [f"device.peak_flops_per_s.{dtype}" for dtype in device.peak_flops_per_s]
    paths += [
        f"device.{name}"
        for name in ("memory_bandwidth_bytes_per_s", "host_bandwidth_bytes_per_s", "launch_s")
    ]
    if device.overlap is not None:
        paths += ["device.overlap.computing_slowdown", "device.overlap.communicating_slowdown"]
    for level in cluster.topology.levels:
        paths += [f"levels.{level.name}.latency_s", f"levels.{level.name}.bandwidth_bytes_per_s"]
    return {path: cluster.errors.get(path, RELATIVE_ERRORS["assumed"]) for path in paths}


def slower_cluster(cluster: Cluster, path: str, error: float) -> Cluster:
    """`cluster` with the number at `path` worse by the relative error.

    Times grow by it, rates are divided by 1 + `error`; of a slowdown s it is s - 1 that grows. What was measured in the
    place of a number errs as that does: curves of moving with the memory bandwidth, those of an element type's
    operations with its peak; of the terms of a level alpha with its latency, the others with its bandwidth. What
    products reach errs with the peak, the start of a level's collectives with its latency.

    Raises:
      ValueError: if times do not depend on such a number.
    """
    factor = 1 + error
    (room, *where) = path.split(".")
    if room == "levels" and len(where) == 2:
        level, field = where
        old = cluster.topology.levels[cluster.topology.index(level)]
        slower = replace_link(
            cluster, level, **{field: _worse(field, getattr(old.link, field), factor)}
        )
        return _with_terms(
            slower,
            level,
            tuple(_slower_terms(terms, field, factor) for terms in old.terms),
            old.start_s * (factor if field == "latency_s" else 1),
        )

    if path not in uncertain_figures(cluster):
        raise ValueError(f"{path!r} is no number of {cluster.name!r} that times depend on")

    device = cluster.device
    if where[0] == "peak_flops_per_s":
        peaks = {
            dtype: peak / factor if dtype == where[1] else peak
            for dtype, peak in device.peak_flops_per_s.items()
        }
        return replace(
            cluster, device=replace(_slower_work(device, where[1], factor), peak_flops_per_s=peaks)
        )

    if where[0] == "overlap":
        assert device.overlap is not None
        slowdown = 1 + (getattr(device.overlap, where[1]) - 1) * factor
        overlap: Overlap = replace(device.overlap, **{where[1]: slowdown})
        return replace(cluster, device=replace(device, overlap=overlap))

    if where[0] == "memory_bandwidth_bytes_per_s":
        device = _slower_moving(device, factor)

    return replace(
        cluster,
        device=replace(device, **{where[0]: _worse(where[0], getattr(device, where[0]), factor)}),
    )


def _with_terms(cluster: Cluster, level: str, terms: tuple[Terms, ...], start_s: float) -> Cluster:
    levels = list(cluster.topology.levels)
    position = cluster.topology.index(level)
    levels[position] = replace(levels[position], terms=terms, start_s=start_s)
    return replace(cluster, topology=Topology(tuple(levels)))


def _slower_terms(terms: Terms, field: str, factor: float) -> Terms:
    if field == "latency_s":
        return replace(terms, alpha_s=terms.alpha_s * factor)
    return replace(
        terms, local=terms.local.slower(factor), beta_s_per_byte=terms.beta_s_per_byte * factor
    )


def _slower_work(device: Device, dtype: str, factor: float) -> Device:
    if device.efficiency is None:
        return device
    work = {
        kind: {
            name: curve.slower(factor) if name == dtype else curve for name, curve in curves.items()
        }
        for kind, curves in device.efficiency.work.items()
    }
    return replace(device, efficiency=replace(device.efficiency, work=work))


def _slower_moving(device: Device, factor: float) -> Device:
    if device.efficiency is None:
        return device
    memory, fresh = (
        None if curve is None else curve.slower(factor)
        for curve in (device.efficiency.memory, device.efficiency.fresh)
    )
    runs = {kind: curve.slower(factor) for kind, curve in device.efficiency.runs.items()}
    return replace(
        device, efficiency=replace(device.efficiency, memory=memory, fresh=fresh, runs=runs)
    )


def _worse(field: str, value: float, factor: float) -> float:
    return value * factor if field in _TIMES else value / factor
