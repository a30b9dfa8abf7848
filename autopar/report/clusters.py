"""Sections about clusters: which are known, and what numbers one rests on."""

from __future__ import annotations

from collections import Counter

from autopar.report.sections import Heading, Section
from autopar.report.units import format_quantity
from cost_models import Figure, figures_of, known_clusters, load_cluster


def cluster_section() -> Section:
    """A row for every cluster that ships with a profile."""
    rows: list[tuple[str, ...]] = []
    for name in known_clusters():
        cluster = load_cluster(name)
        levels = " x ".join(f"{level.size} ({level.name})" for level in cluster.topology.levels)
        memory = format_quantity(cluster.device.memory_bytes, "bytes")
        rows.append((name, cluster.device.name, str(cluster.device_count), memory, levels))

    columns = (
        Heading("name"),
        Heading("device"),
        Heading("count", True),
        Heading("memory each", True),
        Heading("levels"),
    )
    note = "Other sizes go by the same pattern, such as 4x8xh100; a path of a .toml file works too."
    return Section("Clusters", columns, tuple(rows), note)


def figure_section(name: str) -> Section:
    """A row for every number of one cluster, in base units, with its error, how it was obtained, when, and its source.

    Raises:
      UnknownClusterError, ProfileError: as `load_cluster`.
    """
    figures = figures_of(name)
    errors = load_cluster(name).errors

    def error(path: str, figure: object) -> str:
        return format_quantity(errors[path], "percent") if isinstance(figure, Figure) else ""

    rows = tuple(
        (path, f"{f.value:g}", error(path, f), f.obtained, str(f.date), f.source)
        for path, f in figures
    )
    counts = Counter(figure.obtained for _, figure in figures)
    note = (
        "Of these "
        + ", ".join(f"{count} {obtained}" for obtained, count in counts.most_common())
        + "."
    )
    note += " The error is how far off a number may be, as a share of it: one standard error."
    names = (
        ("field", False),
        ("value", True),
        ("error", True),
        ("obtained", False),
        ("date", False),
        ("source", False),
    )
    columns = tuple(Heading(name, right) for name, right in names)
    return Section(f"Numbers of {name}", columns, rows, note)
