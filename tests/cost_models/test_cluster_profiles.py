"""Profiles: every file loads and is sourced, names scale, errors say where and what."""

import json
import tomllib

import pytest

from cost_models import (
    Cluster,
    ProfileError,
    UnknownClusterError,
    cluster_of_devices,
    known_clusters,
    load_cluster,
    replace_link,
)
from cost_models.catalogue import PROFILES

FILES = sorted(PROFILES.rglob("*.toml"))
STRUCTURE = {"size"}


def bare_numbers(data, path=""):
    """The paths of numbers that stand without a source and a date."""
    if isinstance(data, dict):
        if "value" in data:
            return [] if {"source", "date"} <= data.keys() and len(data["source"]) > 10 else [path]
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


@pytest.mark.parametrize("name", [*known_clusters(), "4x2xh100", "cpu1", "cpu64", "tpu-v5e-16x8", "3xa100"])
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
        ("cpu", 512, "cpu512"),
        ("NVIDIA H100 80GB HBM3", 8, "8xh100"),
        ("NVIDIA H100 80GB HBM3", 64, "8x8xh100"),
        ("NVIDIA H200", 1, "1xh200"),
        ("NVIDIA A100-SXM4-80GB", 16, "2x8xa100"),
        ("TPU v5 lite", 1, "tpu-v5e-1x1"),
        ("TPU v5 lite", 8, "tpu-v5e-2x4"),
        ("TPU v5 lite", 256, "tpu-v5e-16x16"),
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
    ],
)
def test_devices_that_make_no_cluster(kind, count, message):
    with pytest.raises(UnknownClusterError, match=message):
        cluster_of_devices(kind, count)


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
        (lambda data: data["topology"]["levels"][0]["link"].update(jitter_s=1.0), "topology.levels.0.link.jitter_s"),
        (lambda data: data["topology"]["levels"][0].update(size=0), "size 0"),
        (lambda data: data["device"].update(memory_bytes=-1.0), "memory_bytes"),
    ],
)
def test_wrong_data_is_refused(change, message):
    data = load_cluster("8xh100").to_dict()
    change(data)
    with pytest.raises(ValueError, match=message):
        Cluster.from_dict(data)


FIGURE = '{{ value = {}, source = "a ruler, held by hand", date = 2026-01-31, obtained = "measured" }}'


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
        (cluster_text(latency=FIGURE.format("-1.0")), r"mine.toml: levels.0.latency_s.value: .*got -1.0"),
        (cluster_text(latency=FIGURE.format('"1"')), r"levels.0.latency_s.value: .*got '1'"),
        (cluster_text(latency="{ value = 1.0, date = 2026-01-31 }"), r"levels.0.latency_s.source: .*required"),
        (cluster_text(more='color = "red"'), r"color: .*got 'red'"),
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


def test_a_file_that_is_not_there():
    with pytest.raises(ProfileError, match=r"nowhere.toml: cannot be read"):
        load_cluster("nowhere.toml")
