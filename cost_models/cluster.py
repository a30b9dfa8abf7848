"""Cluster: a device and the topology that connects its copies; what a plan is priced for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import Any, cast

from pydantic import TypeAdapter

from cost_models.compute import Device, slowest_device
from cost_models.curves import slowest_curve
from cost_models.terms import Terms
from cost_models.topology import Level, Link, Topology


@dataclass(frozen=True, repr=False)
class Cluster:
    """`topology.device_count` copies of `device`, connected as `topology` says.

    `errors` is how far off its numbers may be, as a share of each, by their paths in its profile; see
    `cost_models.errors`, where those not in it have one too.
    """

    name: str
    device: Device
    topology: Topology
    errors: Mapping[str, float] = field(default_factory=dict[str, float], compare=False, repr=False)

    def __repr__(self) -> str:
        return f"Cluster({self.in_short})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.in_short)}</p>"

    @property
    def in_short(self) -> str:
        """Its name, how many devices of which kind it has, with how much memory, and in which levels."""
        levels = " x ".join(f"{level.size} ({level.name})" for level in self.topology.levels)
        memory = f"{self.device.memory_bytes / 2**30:.3g} GiB"
        return f"{self.name}: {self.device_count} x {self.device.name} of {memory}, {levels}"

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self.topology.device_count

    def to_dict(self) -> dict[str, Any]:
        """The cluster as JSON-able data: names and numbers only."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cluster:
        """The cluster that `to_dict` wrote.

        Raises:
          ValueError: naming each field that is missing, unknown, or has a wrong type or value.
        """
        cluster = _ADAPTER.validate_json(json.dumps(dict(data)), strict=True)
        unknown = _paths(dict(data)) - _paths(cluster.to_dict())
        if unknown:
            raise ValueError(
                f"cluster {cluster.name!r}: unknown fields {', '.join(sorted(unknown))}"
            )
        return cluster


_ADAPTER = TypeAdapter(Cluster)


def replace_link(
    cluster: Cluster,
    level: str,
    *,
    bandwidth_bytes_per_s: float | None = None,
    latency_s: float | None = None,
) -> Cluster:
    """`cluster` with another bandwidth or latency of the link of `level`, for sweeps; None keeps what is there.

    Collectives that were measured on the level go by formulas then: they were not measured on such a link.

    Raises:
      ValueError: if there is no such level, or the value is not a possible one.
    """
    levels = list(cluster.topology.levels)
    position = cluster.topology.index(level)
    old = levels[position].link
    link = Link(
        latency_s=old.latency_s if latency_s is None else latency_s,
        bandwidth_bytes_per_s=old.bandwidth_bytes_per_s
        if bandwidth_bytes_per_s is None
        else bandwidth_bytes_per_s,
    )
    levels[position] = replace(levels[position], link=link, terms=())
    return replace(cluster, topology=Topology(tuple(levels)))


def slowest_cluster(name: str, clusters: tuple[Cluster, ...]) -> Cluster:
    """What several clusters of one shape are together, where all do the same at once: each number is the slowest's.

    Every operator and every collective then ends with the slowest device or link of all: memory, peaks and bandwidths
    are the smallest, latencies the largest, and an axis wraps if it does so in all of them.

    Raises:
      ValueError: if their levels differ in number, name, kind or size.
    """
    if not clusters:
        raise ValueError(f"{name!r}: no clusters to put together")

    shapes = [
        tuple((level.name, level.kind, level.size) for level in c.topology.levels) for c in clusters
    ]
    for cluster, shape in zip(clusters, shapes, strict=True):
        if shape != shapes[0]:
            raise ValueError(
                f"{name!r}: {cluster.name!r} is {_shape(shape)} but {clusters[0].name!r} is {_shape(shapes[0])}; "
                "clusters of one list need the same levels in the same sizes"
            )

    levels = zip(*(c.topology.levels for c in clusters), strict=True)
    topology = Topology(tuple(_slowest_level(same) for same in levels))
    return Cluster(name, slowest_device(tuple(c.device for c in clusters)), topology)


def _slowest_level(levels: tuple[Level, ...]) -> Level:
    link = Link(
        latency_s=max(level.link.latency_s for level in levels),
        bandwidth_bytes_per_s=min(level.link.bandwidth_bytes_per_s for level in levels),
    )
    terms = tuple(filter(None, (_slowest_terms(levels, one) for one in levels[0].terms)))
    return replace(
        levels[0],
        link=link,
        wrap=all(level.wrap for level in levels),
        terms=terms,
        start_s=max(level.start_s for level in levels),
    )


def _slowest_terms(levels: tuple[Level, ...], terms: Terms) -> Terms | None:
    """The terms of a kind and number of members, each number the slowest's; None if a level was not measured so."""
    same = [
        t
        for level in levels
        for t in level.terms
        if (t.kind, t.members) == (terms.kind, terms.members)
    ]
    if len(same) < len(levels):
        return None

    return Terms(
        terms.kind,
        terms.members,
        max(t.alpha_s for t in same),
        slowest_curve(tuple(t.local for t in same)),
        max(t.beta_s_per_byte for t in same),
    )


def _shape(levels: tuple[tuple[str, str, int], ...]) -> str:
    return " x ".join(f"{size} {level} ({kind})" for level, kind, size in levels)


def _paths(data: object, prefix: str = "") -> set[str]:
    """The dotted paths of all leaves of nested dicts and lists."""
    if isinstance(data, dict):
        items = cast("dict[object, object]", data).items()
    elif isinstance(data, list | tuple):
        items = enumerate(cast("list[object]", data))
    else:
        return {prefix}
    return {
        path
        for key, value in items
        for path in _paths(value, f"{prefix}.{key}" if prefix else str(key))
    }
