"""Collective times: against messages counted one by one, against measurements, and their properties."""

from dataclasses import replace
from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import (
    Level,
    Link,
    Topology,
    best_algorithm,
    collective_time_s,
    group,
    load_cluster,
)
from cost_models.algorithms import (
    bruck_all_to_all_time_s,
    hierarchical_reduce_scatter_time_s,
    multi_axis_reduce_scatter_time_s,
    pairwise_all_to_all_time_s,
    ring_reduce_scatter_time_s,
    tree_all_reduce_time_s,
)
from cost_models.collective import ALGORITHMS
from cost_models.groups import device_groups, group_of_devices

KINDS = tuple(ALGORITHMS)
MIB = 1 << 20
GBIT = 1e9 / 8


@st.composite
def topologies(draw):
    """Up to two switch levels, then up to two torus axes or one full level."""
    links = st.builds(Link, st.floats(1e-7, 1e-3), st.floats(1e6, 1e12))
    levels = [
        Level(f"s{i}", draw(st.integers(1, 4)), draw(links)) for i in range(draw(st.integers(0, 2)))
    ]
    if draw(st.integers(0, 3)) == 0:
        return Topology((*levels, Level("f", draw(st.integers(1, 5)), draw(links), "full")))
    for i in range(draw(st.integers(0 if levels else 1, 2))):
        size = draw(st.integers(1, 4))
        levels.append(Level(f"t{i}", size, draw(links), "torus", size > 2 and draw(st.booleans())))
    return Topology(tuple(levels))


@st.composite
def drawn_groups(draw):
    """A topology, and a mesh on some of its devices with some axes."""
    topology = draw(topologies())
    sizes, left = [], topology.device_count
    for _ in range(3):
        sizes.append(draw(st.integers(1, left)))
        left //= sizes[-1]
    axes = draw(st.lists(st.integers(0, 2), unique=True))
    return topology, tuple(sizes), tuple(axes)


@given(drawn_groups(), st.sampled_from(KINDS), st.integers(0, 1 << 32), st.integers(0, 1 << 32))
@settings(max_examples=200, deadline=None)
def test_times_do_not_fall_as_bytes_grow_and_groups_of_one_are_free(drawn, kind, one, two):
    got = group(*drawn)
    small, large = sorted((one, two))
    times = [collective_time_s(kind, size, got) for size in (0, small, large)]
    assert times == sorted(times)
    assert times[2] < inf
    if got.size == 1:
        assert times == [0, 0, 0]
    else:
        assert times[0] > 0  # the latencies
        slowest = max(level.link.latency_s for level in drawn[0].levels)
        assert times[0] <= slowest * 20 * got.size


@given(drawn_groups(), st.sampled_from(KINDS), st.floats(0, 40), st.floats(1e-6, 1))
@settings(max_examples=200, deadline=None)
def test_times_do_not_jump_where_the_algorithm_changes(drawn, kind, log_size, part):
    """A part more bytes cost at most that part more time."""
    got, size = group(*drawn), 2**log_size
    before, after = (
        collective_time_s(kind, size, got),
        collective_time_s(kind, size * (1 + part), got),
    )
    assert before <= after <= before * (1 + part) * (1 + 1e-12)


@given(drawn_groups(), st.sampled_from(KINDS), st.integers(1, 1 << 32))
@settings(max_examples=150, deadline=None)
def test_other_groups_only_ever_cost_time(drawn, kind, size):
    topology, mesh, axes = drawn
    everyone = device_groups(mesh, axes)[:8]
    alone = max(
        collective_time_s(kind, size, group_of_devices(topology, one[None])) for one in everyone
    )
    assert alone <= collective_time_s(kind, size, group(topology, mesh, axes)) * (1 + 1e-9)


@given(
    drawn_groups(),
    st.sampled_from(KINDS),
    st.integers(1, 1 << 32),
    st.floats(0.1, 1),
    st.integers(0, 3),
)
@settings(max_examples=100, deadline=None)
def test_a_slower_link_never_saves_time(drawn, kind, size, factor, position):
    topology, mesh, axes = drawn
    levels = list(topology.levels)
    position %= len(levels)
    old = levels[position].link
    levels[position] = replace(
        levels[position], link=Link(old.latency_s / factor, old.bandwidth_bytes_per_s * factor)
    )
    slower = collective_time_s(kind, size, group(Topology(tuple(levels)), mesh, axes))
    assert slower >= collective_time_s(kind, size, group(topology, mesh, axes)) * (1 - 1e-9)


@given(drawn_groups(), st.integers(1, 1 << 32))
@settings(max_examples=100, deadline=None)
def test_an_all_reduce_is_at_most_a_reduce_scatter_and_an_all_gather(drawn, size):
    got = group(*drawn)
    parts = collective_time_s("reduce_scatter", size, got) + collective_time_s(
        "all_gather", size, got
    )
    name, time_s = best_algorithm("all_reduce", size, got)
    assert time_s <= parts * (1 + 1e-12)
    assert name == "tree" or time_s == pytest.approx(parts)


def busiest_uplink_s(topology, messages):
    """Seconds until all (source, target, bytes) have left the busiest uplink, counted unit by unit."""
    worst = 0.0
    for level, stride in zip(topology.levels, topology.strides, strict=True):
        load = {}
        for source, target, size in messages:
            if source // stride != target // stride:
                load[source // stride] = load.get(source // stride, 0) + size
        worst = max([worst] + [total / level.link.bandwidth_bytes_per_s for total in load.values()])
    return worst


NO_LATENCY = Topology(
    (
        Level("rack", 2, Link(0, 3e9)),
        Level("server", 3, Link(0, 7e9)),
        Level("device", 4, Link(0, 5e9)),
    )
)


@pytest.mark.parametrize(
    "mesh", [(24,), (2, 12), (6, 4), (4, 6), (3, 8), (2, 3, 4), (5, 4), (8, 3)]
)
def test_transfer_times_are_those_of_the_messages(mesh):
    size = 1 << 24
    for axes in [(i,) for i in range(len(mesh))] + [tuple(range(len(mesh)))]:
        got = group(NO_LATENCY, mesh, axes)
        if got.size == 1:
            continue
        groups, n = device_groups(mesh, axes).tolist(), got.size
        step = [(g[i], g[(i + 1) % n], size / n) for g in groups for i in range(n)]
        expected = (n - 1) * busiest_uplink_s(NO_LATENCY, step)
        assert ring_reduce_scatter_time_s(size, got) == pytest.approx(expected)
        pairs = [(a, b, size / n) for g in groups for a, b in product(g, g)]
        assert pairwise_all_to_all_time_s(size, got) == pytest.approx(
            busiest_uplink_s(NO_LATENCY, pairs)
        )


@pytest.mark.parametrize("mesh", [(24,), (2, 12), (6, 4), (2, 3, 4)])
def test_hierarchical_transfers_are_those_of_the_messages_of_each_phase(mesh):
    size, axes = 1 << 24, tuple(range(len(mesh)))[:2]
    got, groups = group(NO_LATENCY, mesh, axes), device_groups(mesh, axes).tolist()
    expected, remaining, parent = 0.0, size, 1
    for level, stride in reversed(list(zip(NO_LATENCY.levels, NO_LATENCY.strides, strict=True))):
        parent = stride * level.size
        messages, fanout = [], 1
        for members in groups:
            for device in members:
                # peers: same place inside the unit, other units under the same parent
                units = sorted({m // stride for m in members if m // parent == device // parent})
                place = [m for m in members if m // stride == device // stride].index(device)
                target = units[(units.index(device // stride) + 1) % len(units)]
                peer = [m for m in members if m // stride == target][place]
                fanout = len(units)
                messages.append((device, peer, remaining / fanout))
        expected += (fanout - 1) * busiest_uplink_s(NO_LATENCY, messages)
        remaining /= fanout
    assert got.regular
    assert hierarchical_reduce_scatter_time_s(size, got) == pytest.approx(expected)


def hosts(network, devices=1, inside=123e6, latency=0.0):
    return Topology(
        (Level("host", 2, Link(latency, network)), Level("device", devices, Link(latency, inside)))
    )


@pytest.mark.parametrize(
    ("kind", "mib", "measured_model_ms"),
    [
        ("all_reduce", 1, 8.4),
        ("all_reduce", 16, 134),
        ("all_reduce", 64, 537),
        ("reduce_scatter", 16, 67),
        ("all_gather", 32, 134),  # 16 MiB before, 32 after
        ("permute", 64, 537),
        ("all_to_all", 16, 67),
    ],
)
def test_two_hosts_at_1_gbit_are_bytes_by_bandwidth(kind, mib, measured_model_ms):
    got = group(hosts(GBIT, inside=1e12), (2,), (0,))
    assert collective_time_s(kind, mib * MIB, got) * 1e3 == pytest.approx(
        measured_model_ms, rel=0.01
    )


def test_two_groups_share_the_link():
    """Measured 140 ms: all-reduce of 8 MiB over two hosts, by two groups at once, at 1 Gbit/s."""
    time_s = collective_time_s(
        "all_reduce", 8 * MIB, group(hosts(GBIT, 2, inside=1e9), (2, 2), (0,))
    )
    assert time_s == pytest.approx(0.140, rel=0.05)


@pytest.mark.parametrize(
    ("network", "flat_ms", "hierarchical_ms", "winner"),
    [(GBIT, 107, 135, "ring"), (0.2 * GBIT, 591, 439, "hierarchical")],
)
def test_the_winner_flips_with_the_network(network, flat_ms, hierarchical_ms, winner):
    """Measured: 2 hosts x 2 devices, 8 MiB a device; the speed inside a host is what is left of 135 ms."""
    everyone = group(hosts(network, 2), (4,), (0,))
    flat = 2 * ring_reduce_scatter_time_s(8 * MIB, everyone) * 1e3
    hierarchical = 2 * hierarchical_reduce_scatter_time_s(8 * MIB, everyone) * 1e3
    assert flat == pytest.approx(flat_ms, rel=0.2)
    assert hierarchical == pytest.approx(hierarchical_ms, rel=0.2)
    assert best_algorithm("all_reduce", 8 * MIB, everyone)[0] == winner


def test_short_messages_take_few_steps_and_long_ones_few_bytes():
    servers = load_cluster("8x8xh100").topology
    got = group(servers, (64,), (0,))
    assert best_algorithm("all_reduce", 4096, got)[0] == "tree"
    assert best_algorithm("all_reduce", 1 << 33, got)[0] == "ring"
    assert best_algorithm("all_to_all", 4096, got)[0] == "bruck"
    assert best_algorithm("all_to_all", 1 << 33, got)[0] == "pairwise"
    three_and_three = 2 * 3 * (14e-6 + 3.4e-6)
    assert tree_all_reduce_time_s(0, got) == pytest.approx(three_and_three)
    assert bruck_all_to_all_time_s(0, got) == pytest.approx(6 * 14e-6)


def test_torus_formulas():
    """Rings of 16: twice the bandwidth of a line; two axes at once: half of the time of one after the other."""
    size, beta = 1 << 36, 50e9
    pod, line = load_cluster("tpu-v5e-16x16").topology, load_cluster("tpu-v5e-8x8").topology
    ring = collective_time_s("all_gather", size, group(pod, (16, 16), (1,)))
    assert ring == pytest.approx(15 / 16 * size / (2 * beta), rel=1e-4)
    row = collective_time_s("all_gather", size, group(line, (8, 8), (1,)))
    assert row == pytest.approx(7 / 8 * size / beta, rel=1e-4)
    both = group(pod, (256,), (0,))
    assert best_algorithm("all_gather", size, both)[0] == "multi_axis"
    assert multi_axis_reduce_scatter_time_s(size, both) == pytest.approx(
        255 / 256 * size / (4 * beta), rel=1e-4
    )
    one_by_one = hierarchical_reduce_scatter_time_s(size, both)
    assert one_by_one == pytest.approx(2 * multi_axis_reduce_scatter_time_s(size, both), rel=1e-4)
    exchange = collective_time_s("all_to_all", size, group(pod, (16, 16), (0,)))
    assert exchange == pytest.approx(16 * size / (8 * beta), rel=1e-4)


def test_wrong_requests_are_refused():
    got = group(hosts(GBIT), (2,), (0,))
    with pytest.raises(ValueError, match=r"unknown collective 'gather'.*all_gather"):
        collective_time_s("gather", 1, got)
    with pytest.raises(ValueError, match="size_bytes"):
        collective_time_s("all_gather", -1, got)
    with pytest.raises(ValueError, match="equal parts"):
        hierarchical_reduce_scatter_time_s(1, group(hosts(GBIT, 4), (5,), (0,)))
