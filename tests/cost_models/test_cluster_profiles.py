"""Profiles: every file loads and is sourced, names scale, errors say where and what."""

import json
import tomllib

import pytest

from cost_models import (
    Cluster,
    ProfileError,
    UnknownClusterError,
    cluster_of_devices,
    collective_time_s,
    compute_time_s,
    figures_of,
    group,
    known_clusters,
    load_cluster,
    replace_link,
    slowest_cluster,
)
from cost_models.catalogue import PROFILES

FILES = sorted(PROFILES.rglob("*.toml"))
STRUCTURE = {"size", "members", "size_bytes", "operations"}


def bare_numbers(data, path=""):
    """The paths of numbers that stand without a source and a date."""
    if isinstance(data, dict):
        if "value" in data:
            return (
                []
                if {"source", "date", "obtained"} <= data.keys() and len(data["source"]) > 10
                else [path]
            )
        return [p for key, value in data.items() for p in bare_numbers(value, f"{path}.{key}")]
    if isinstance(data, list):
        return [p for value in data for p in bare_numbers(value, path)]
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    return [path] if is_number and path.rpartition(".")[2] not in STRUCTURE else []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_number_has_a_source_and_a_date(path):
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    assert bare_numbers(data) == []
    assert data["name"] == path.stem


@pytest.mark.parametrize(
    "name", [*known_clusters(), "4x2xh100", "cpu1", "cpu64", "tpu-v5e-16x8", "3xa100"]
)
def test_clusters_survive_json(name):
    cluster = load_cluster(name)
    assert cluster.name == name
    again = Cluster.from_dict(json.loads(json.dumps(cluster.to_dict())))
    assert again == cluster
    assert hash(again) == hash(cluster)


def test_h100_servers():
    cluster = load_cluster("8x8xh100")
    assert cluster.topology.sizes == (8, 8)
    assert [level.link.bandwidth_bytes_per_s for level in cluster.topology.levels] == [400e9, 450e9]
    assert load_cluster("8xh100").topology.levels == cluster.topology.levels[1:]
    half = load_cluster("8x4xh100").topology.levels[0]
    assert half.link.bandwidth_bytes_per_s == 200e9  # one network card for each device


def test_virtual_devices_share_one_machine():
    one, eight = load_cluster("cpu1"), load_cluster("cpu8")
    assert eight.device_count == 8
    assert eight.device.memory_bytes * 8 == one.device.memory_bytes
    assert eight.device.peak_flops_per_s["float32"] * 8 == one.device.peak_flops_per_s["float32"]
    assert eight.device.launch_s == one.device.launch_s
    links = [cluster.topology.levels[0].link.bandwidth_bytes_per_s for cluster in (one, eight)]
    assert links[0] == 8 * links[1]


def test_tpu_axes_wrap_only_at_their_full_length():
    assert [level.wrap for level in load_cluster("tpu-v5e-4x4").topology.levels] == [False, False]
    assert [level.wrap for level in load_cluster("tpu-v5e-8x16").topology.levels] == [False, True]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("16xh100", "at most 8 .* say '2x8xh100'"),
        ("12xh100", "at most 8"),
        ("8x8xh10", "did you mean '8x8xh100'"),
        ("nonsense", "Known are .*8x8xh100.*cpu8"),
        ("0xh100", "at least 1"),
        ("2x2x2xh100", "3 sizes"),
        ("16xh100-pcie", "at most 2 .* say '2x4x2xh100-pcie'"),
        ("tpu-v5e-slices-2x8", "'tpu-v5e-16x16' has 2 sizes, but 8 was given"),
        ("dgx-h100-32x8", "'32x8xh100' has 2 sizes, but 8 was given"),
        ("tpu-v5e-16", "1 sizes"),
        ("tpu-v5e-32x4", "at most 16"),
    ],
)
def test_unknown_names_say_what_is_known(name, message):
    with pytest.raises(UnknownClusterError, match=message):
        load_cluster(name)


@pytest.mark.parametrize(
    ("kind", "count", "name"),
    [
        ("cpu", 8, "cpu8"),
        ("cpu AuthenticAMD 26", 8, "cpu8-zen5"),
        ("cpu", 512, "cpu512"),
        ("NVIDIA H100 80GB HBM3", 8, "8xh100"),
        ("NVIDIA H100 80GB HBM3", 64, "8x8xh100"),
        ("NVIDIA H200", 1, "1xh200"),
        ("NVIDIA A100-SXM4-80GB", 16, "2x8xa100"),
        ("TPU v5 lite", 1, "tpu-v5e-1x1"),
        ("TPU v5 lite", 8, "tpu-v5e-2x4"),
        ("TPU v5 lite", 256, "tpu-v5e-16x16"),
        ("TPU v4", 64, "tpu-v4-4x4x4"),
        ("TPU v4", 16, "tpu-v4-2x2x4"),
        ("TPU v6 lite", 32, "tpu-v6e-4x8"),
        ("NVIDIA H100 PCIe", 16, "2x4x2xh100-pcie"),
        ("NVIDIA H100 PCIe", 4, "2x2xh100-pcie"),
        ("NVIDIA GB200", 144, "2x72xgb200"),
        ("AMD Instinct MI300X", 8, "8xmi300x"),
    ],
)
def test_devices_that_jax_names_make_a_cluster(kind, count, name):
    cluster = cluster_of_devices(kind, count)
    assert cluster == load_cluster(name)
    assert cluster.device_count == count


@pytest.mark.parametrize(
    ("kind", "count", "message"),
    [
        ("Abacus", 8, "'Abacus'.*'cpu'"),
        ("NVIDIA H200", 12, "at most 8"),
        ("NVIDIA H200", 0, "at least 1"),
        ("TPU v5 lite", 17, "no torus"),
        ("TPU v5 lite", 0, "no torus"),
        ("cpu", 0, "at least 1"),
        ("cpu AuthenticAMD 26", 4, "no profile for 4 devices"),
    ],
)
def test_devices_that_make_no_cluster(kind, count, message):
    with pytest.raises(UnknownClusterError, match=message):
        cluster_of_devices(kind, count)


def test_clusters_stand_in_clusters():
    pods, servers = load_cluster("dgx-h100-2x32x8"), load_cluster("32x8xh100")
    assert pods.topology.sizes == (2, 32, 8)
    assert pods.topology.levels[1:] == servers.topology.levels
    assert pods.device == servers.device
    # a card for each device of a pod
    assert pods.topology.levels[0].link.bandwidth_bytes_per_s == 256 * 50e9
    assert load_cluster("dgx-h100-4x16x8").topology.sizes == (4, 16, 8)
    slices = load_cluster("tpu-v5e-slices-2x16x16").topology.levels
    assert [(level.name, level.wrap) for level in slices] == [
        ("slice", False),
        ("y", True),
        ("x", True),
    ]
    assert not any(level.wrap for level in load_cluster("tpu-v5e-slices-4x8x8").topology.levels)


def test_two_hosts_have_a_machine_each():
    hosts = load_cluster("2x2xcpu-1gbit")
    assert hosts.device.memory_bytes == load_cluster("cpu2").device.memory_bytes
    across = group(hosts.topology, (2, 2), (0,))
    # measured
    assert collective_time_s("all_reduce", 8 << 20, across) == pytest.approx(0.140, rel=0.05)
    one_each = group(load_cluster("2x1xcpu-1gbit").topology, (2,), (0,))
    for mib, measured_s in ((1, 8.8e-3), (16, 0.141), (64, 0.602)):
        assert collective_time_s("all_reduce", mib << 20, one_each) == pytest.approx(
            measured_s, rel=0.08
        )


# Measured, 2 hosts x 2 devices: ms at once, and by levels.
ALL_REDUCES = {
    "2x2xcpu-200mbit": {1: (65.6, 44.8), 2: (131.6, 89.3), 4: (262.1, 188.5), 8: (544.9, 390.1)},
    "2x2xcpu-1gbit": {1: (13.1, 9.2), 4: (54.2, 52.9), 8: (110.8, 107.7)},
}


@pytest.mark.parametrize("name", ALL_REDUCES)
def test_gloo_reduces_by_levels_only_where_the_program_says_so(name):
    topology = load_cluster(name).topology
    everyone, across, inside = (group(topology, (2, 2), axes) for axes in ((0, 1), (0,), (1,)))
    for mib, (flat_ms, levels_ms) in ALL_REDUCES[name].items():
        size = mib << 20
        flat = collective_time_s("all_reduce", size, everyone)
        levels = (
            collective_time_s("reduce_scatter", size, inside)
            + collective_time_s("all_reduce", size / 2, across)
            + collective_time_s("all_gather", size, inside)
        )
        assert flat == pytest.approx(flat_ms / 1e3, rel=0.1)
        assert levels == pytest.approx(levels_ms / 1e3, rel=0.2)


def test_axes_that_wrap_only_together():
    assert all(level.wrap for level in load_cluster("tpu-v4-4x8x12").topology.levels)
    assert not any(level.wrap for level in load_cluster("tpu-v4-2x4x4").topology.levels)


def test_all_clusters_have_prices():
    for name in known_clusters():
        cluster = load_cluster(name)
        everyone = group(cluster.topology, (cluster.device_count,), (0,))
        for kind in ("all_reduce", "all_to_all", "broadcast"):
            assert 0 < collective_time_s(kind, 1 << 20, everyone) < 1


def test_figures_say_how_they_were_obtained():
    figures = dict(figures_of("dgx-h100-2x32x8"))
    assert figures["levels.pod.bandwidth_bytes_per_s"].value == 50e9
    assert figures["levels.device.max_size"].value == 8
    assert figures["device.memory_bytes"].obtained == "data sheet"
    assert dict(figures_of("cpu8"))["device.launch_s"].obtained == "measured"
    assert {figure.obtained for _, figure in figures_of("cpu-gloo2")} == {"measured", "fitted"}


def test_replace_link():
    cluster = load_cluster("8x8xh100")
    slow = replace_link(cluster, "server", bandwidth_bytes_per_s=1e9)
    assert slow.topology.levels[0].link.bandwidth_bytes_per_s == 1e9
    assert slow.topology.levels[0].link.latency_s == cluster.topology.levels[0].link.latency_s
    assert slow.topology.levels[1] == cluster.topology.levels[1]
    assert replace_link(cluster, "device", latency_s=0.0).topology.levels[1].link.latency_s == 0
    with pytest.raises(ValueError, match=r"'rack'.*server, device"):
        replace_link(cluster, "rack", latency_s=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("device"), "device"),
        (lambda data: data.update(colour="red"), "colour"),
        (lambda data: data["device"].update(launch_s="soon"), "launch_s"),
        (
            lambda data: data["topology"]["levels"][0]["link"].update(jitter_s=1.0),
            "topology.levels.0.link.jitter_s",
        ),
        (lambda data: data["topology"]["levels"][0].update(size=0), "size 0"),
        (lambda data: data["device"].update(memory_bytes=-1.0), "memory_bytes"),
    ],
)
def test_wrong_data_is_refused(change, message):
    data = load_cluster("8xh100").to_dict()
    change(data)
    with pytest.raises(ValueError, match=message):
        Cluster.from_dict(data)


FIGURE = (
    '{{ value = {}, source = "a ruler, held by hand", date = 2026-01-31, obtained = "measured" }}'
)


MICROSECOND = FIGURE.format("1e-6")


def cluster_text(latency=MICROSECOND, device='device = "h100-sxm"', more=""):
    return f"""
name = "mine"
{device}
{more}
[[levels]]
name = "box"
size = 3
latency_s = {latency}
bandwidth_bytes_per_s = {FIGURE.format("2e9")}
"""


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(cluster_text())
    cluster = load_cluster(path)
    assert cluster == load_cluster(str(path))
    assert (cluster.name, cluster.device_count) == ("mine", 3)
    assert cluster.topology.levels[0].link.bandwidth_bytes_per_s == 2e9
    (tmp_path / "chip.toml").write_text((PROFILES / "devices" / "cpu.toml").read_text())
    path.write_text(cluster_text(device='device = "chip.toml"'))
    assert load_cluster(path).device == load_cluster("cpu3").device


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (cluster_text(latency="1e-6"), r"mine.toml: levels.0.latency_s: .*got 1e-06"),
        (
            cluster_text(latency=FIGURE.format("-1.0")),
            r"mine.toml: levels.0.latency_s.value: .*got -1.0",
        ),
        (cluster_text(latency=FIGURE.format('"1"')), r"levels.0.latency_s.value: .*got '1'"),
        (
            cluster_text(latency="{ value = 1.0, date = 2026-01-31 }"),
            r"levels.0.latency_s.source: .*required",
        ),
        (cluster_text(more='glow = "red"'), r"glow: .*got 'red'; take it out"),
        (cluster_text(more='devise_kinds = ["x"]'), r"devise_kinds: .*did you mean 'device_kinds'"),
        (cluster_text(latency="1e-6"), r"got 1e-06; a number is written { value = "),
        (
            cluster_text(latency="{ value = 1.0 }"),
            r"latency_s.obtained: Field required; add it, as in { value",
        ),
        (cluster_text(latency=FIGURE.format("0.0")), r"got 0.0; it is in base units"),
        (
            cluster_text(latency=MICROSECOND.replace("measured", "guessed")),
            r"obtained: .*'assumed', got 'guessed'",
        ),
        (cluster_text(device=""), r"mine.toml: .*give `device`, or `inside`"),
        (
            cluster_text(device='device = "cpu"', more='inside = "8xh100"'),
            r"mine.toml: .*either a device or clusters",
        ),
        (
            cluster_text(device='inside = "8xh10"'),
            r"mine.toml: inside: unknown cluster '8xh10'; did you mean",
        ),
        (
            cluster_text(device='inside = "mine.toml"'),
            r"mine.toml in .*mine.toml: it contains itself",
        ),
        (
            cluster_text(device='inside = ["8xh100", "8xa100"]'),
            r"'mine' lists 2 clusters inside for 3 units",
        ),
        (
            cluster_text(device='inside = ["8xh100", "8xa100", "4xa100"]'),
            r"'4xa100' is 4 device .* but '8xh100' is 8",
        ),
        (cluster_text(device='device = "h1000"'), r"no device 'h1000'; known are a100-sxm"),
        (cluster_text(device='device = "gone.toml"'), r"gone.toml: cannot be read"),
        ("name = ", r"mine.toml: cannot be read as TOML"),
    ],
)
def test_a_wrong_file_names_file_field_and_value(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message):
        load_cluster(path)


def test_the_slowest_generation_sets_the_pace(tmp_path):
    """Three boxes of two generations: each collective and kernel takes what it takes on the slower one."""
    path = tmp_path / "mine.toml"
    path.write_text(cluster_text(device='inside = ["8xh100", "8xa100-40gb", "8xh100"]'))
    mixed, old, new = load_cluster(path), load_cluster("8xa100-40gb"), load_cluster("8xh100")
    assert mixed.device_count == 24
    assert mixed.device.name == "h100-sxm + a100-sxm-40gb"
    assert mixed.device.memory_bytes == old.device.memory_bytes
    assert mixed.topology.levels[1].link == old.topology.levels[0].link
    inside = group(mixed.topology, (3, 8), (1,))
    alone = group(old.topology, (8,), (0,))
    assert collective_time_s("all_gather", 1 << 24, inside) == collective_time_s(
        "all_gather", 1 << 24, alone
    )
    assert compute_time_s(1e12, 1e6, "bfloat16", mixed.device) == compute_time_s(
        1e12, 1e6, "bfloat16", old.device
    )
    assert slowest_cluster("x", (new, old)).topology == slowest_cluster("x", (old, new)).topology
    assert Cluster.from_dict(mixed.to_dict()) == mixed
    with pytest.raises(ValueError, match="no clusters"):
        slowest_cluster("x", ())


def test_files_inside_files(tmp_path):
    (tmp_path / "box.toml").write_text(cluster_text())
    path = tmp_path / "outer.toml"
    path.write_text(
        cluster_text(device='inside = "box.toml"')
        .replace('"box"', '"room"')
        .replace('"mine"', '"outer"')
    )
    assert load_cluster(path).topology.sizes == (3, 3)
    assert load_cluster(path).name == "outer"
    assert [name for name, _ in figures_of(path) if name.startswith("levels.room")]
    assert "device.memory_bytes" in dict(figures_of(path))


def test_a_file_that_is_not_there():
    with pytest.raises(ProfileError, match=r"nowhere.toml: cannot be read"):
        load_cluster("nowhere.toml")
