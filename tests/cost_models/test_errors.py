"""errors: how far off each number may be, from the way it was obtained, and clusters that are that far off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cost_models import (
    RELATIVE_ERRORS,
    Cluster,
    CollectiveKind,
    Curve,
    Efficiency,
    Overlap,
    ProfileError,
    collective_time_s,
    compute_time_s,
    figures_of,
    formula_error,
    group,
    known_clusters,
    load_cluster,
    slower_cluster,
    slowest_device,
    uncertain_figures,
)
from cost_models.compute import host_time_s
from cost_models.errors import FORMULA_ERROR

DEVICE = """
[device]
name = "d"
memory_bytes = { value = 16e9, source = "s", date = 2026-01-31, obtained = "data sheet" }
memory_bandwidth_bytes_per_s = { value = 1e12, source = "s", date = 2026-01-31, obtained = "published" }
launch_s = { value = 4e-6, source = "s", date = 2026-01-31, obtained = "measured", relative_error = 0.02 }
[device.peak_flops_per_s]
float32 = { value = 1e14, source = "s", date = 2026-01-31, obtained = "data sheet" }
[device.overlap]
computing_slowdown = { value = 1.1, source = "s", date = 2026-01-31, obtained = "measured" }
communicating_slowdown = { value = SLOWDOWN, source = "s", date = 2026-01-31, obtained = "assumed" }
"""
LEVEL = """
[[levels]]
name = "device"
size = 4
latency_s = { value = 3e-6, source = "s", date = 2026-01-31, obtained = "fitted" }
bandwidth_bytes_per_s = { value = 1e11, source = "s", date = 2026-01-31, obtained = "derived" }
"""


def written(folder: Path, top: str = "", slowdown: str = "1.3") -> Path:
    path = folder / "mine.toml"
    path.write_text(
        'name = "mine"\n' + top + LEVEL + DEVICE.replace("SLOWDOWN", slowdown), encoding="utf-8"
    )
    return path


@pytest.mark.parametrize("name", known_clusters())
def test_every_number_has_the_error_of_its_way(name: str) -> None:
    cluster = load_cluster(name)
    for path, figure in figures_of(name):
        if path in cluster.errors:
            assert cluster.errors[path] >= RELATIVE_ERRORS[figure.obtained]
    assert cluster.errors.keys() >= uncertain_figures(cluster).keys()
    assert Cluster.from_dict(cluster.to_dict()).errors == cluster.errors


def test_a_profile_may_know_better(tmp_path: Path) -> None:
    errors = uncertain_figures(load_cluster(written(tmp_path)))
    assert errors == {
        "device.peak_flops_per_s.float32": 0.3,
        "device.memory_bandwidth_bytes_per_s": 0.2,
        "device.host_bandwidth_bytes_per_s": RELATIVE_ERRORS["assumed"],
        "device.launch_s": 0.02,
        "device.overlap.computing_slowdown": 0.05,
        "device.overlap.communicating_slowdown": 0.5,
        "levels.device.latency_s": 0.1,
        "levels.device.bandwidth_bytes_per_s": 0.25,
    }
    knows = load_cluster(
        written(
            tmp_path, 'relative_errors = { "data sheet" = 0.4, measured = 0.01, formula = 0.07 }\n'
        )
    )
    assert knows.errors["device.peak_flops_per_s.float32"] == 0.4
    assert knows.errors["device.overlap.computing_slowdown"] == 0.01
    assert knows.errors["device.launch_s"] == 0.02
    assert (formula_error(knows), formula_error(load_cluster("8xh100"))) == (0.07, FORMULA_ERROR)


def test_bad_profiles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ProfileError, match=r"communicating_slowdown must be finite and >= 1, got 0\.9"
    ):
        load_cluster(written(tmp_path, slowdown="0.9"))
    with pytest.raises(ProfileError, match="relative_errors"):
        load_cluster(written(tmp_path, "relative_errors = { guessed = 0.5 }\n"))


def test_what_nobody_speaks_of_is_assumed() -> None:
    bare = replace(load_cluster("8xh100"), errors={})
    assert set(uncertain_figures(bare).values()) == {RELATIVE_ERRORS["assumed"]}


def reached() -> Cluster:
    """A cluster whose device states what it reaches of its peaks."""
    cluster, curve = load_cluster("cpu8"), Curve((1e3,), (1e-6,), 1e-10)
    efficiency = Efficiency({}, {"exp": {"float32": curve}}, curve, curve, runs={"gather": curve})
    device = replace(cluster.device, efficiency=efficiency)
    return replace(cluster, device=device)


@pytest.mark.parametrize(
    "name", ["4x8xh100", "tpu-v5e-slices-2x4x4", "cpu8", "2x2xcpu-1gbit", "reached"]
)
def test_a_worse_number_makes_something_slower_and_nothing_faster(name: str) -> None:
    cluster = reached() if name == "reached" else load_cluster(name)
    members = range(len(cluster.topology.sizes))

    def times(of: Cluster) -> list[float]:
        topology = of.topology
        groups = [group(topology, topology.sizes, (n,)) for n in members]
        kinds: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "all_to_all", "permute")
        moving = [
            collective_time_s(kind, size, g)
            for kind in kinds
            for size in (8, 2**26)
            for g in groups
        ]
        work = [
            compute_time_s(*w, of.device)
            for dtype in of.device.peak_flops_per_s
            for w in ((1e12, 8, dtype), (1, 2**30, dtype))
        ]
        work += [compute_time_s(1e9, 8, "float32", of.device, kind="exp")]
        work += [compute_time_s(0, 8e9, "float32", of.device, kind="gather", runs=(1e6, 4e3))]
        work += [host_time_s(1e9, of.device)]
        overlap = of.device.overlap or Overlap(1.0, 1.0)
        return [*moving, *work, overlap.computing_slowdown, overlap.communicating_slowdown]

    before = times(cluster)
    for path, error in uncertain_figures(cluster).items():
        after = times(slower_cluster(cluster, path, error))
        assert all(new >= old for old, new in zip(before, after, strict=True)), path
        assert after != before, path
        assert max(new / old for old, new in zip(before, after, strict=True)) <= (1 + error) * (
            1 + 1e-9
        ), path


def test_numbers_that_no_time_depends_on_cannot_be_worse() -> None:
    for path in (
        "device.memory_bytes",
        "device.overlap.computing_slowdown",
        "levels.moon.latency_s",
    ):
        with pytest.raises(ValueError, match=path.split(".")[1]):
            slower_cluster(load_cluster("cpu8"), path, 0.1)


def test_the_slowest_device_overlaps_as_the_worst() -> None:
    h100, tpu, cpu = (load_cluster(name).device for name in ("8xh100", "tpu-v5e-4x4", "cpu8"))
    assert slowest_device((h100, tpu)).overlap == Overlap(1.189, 1.3)
    assert slowest_device((h100, cpu)).overlap is None
