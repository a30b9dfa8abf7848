"""Formulas against messages: algorithms simulated round by round on the links, and bounds that none beats."""

from dataclasses import replace
from itertools import pairwise, product
from math import prod

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import Level, Link, Topology, collective_time_s, group, link_graph
from cost_models.algorithms import (
    binomial_scatter_time_s,
    bruck_all_to_all_time_s,
    chain_broadcast_time_s,
    hierarchical_reduce_scatter_time_s,
    multi_axis_reduce_scatter_time_s,
    pairwise_all_to_all_time_s,
    permute_time_s,
    ring_reduce_scatter_time_s,
    tree_broadcast_time_s,
)
from cost_models.collective import ALGORITHMS
from cost_models.groups import device_groups
from tests.cost_models.simulation import (
    Links,
    binomial_broadcast,
    both_ways,
    bruck_all_to_all,
    chain_broadcast,
    direct_reduce_scatter,
    least_seconds,
    ring_reduce_scatter,
    seconds,
    together,
)

SIZE = 1 << 24


def tree(*sizes, bandwidths=(3e9, 7e9, 5e9), last="switch"):
    """Switch levels without latency, the innermost of kind `last`."""
    kinds = ["switch"] * (len(sizes) - 1) + [last]
    links = [Link(0, b) for b in bandwidths[-len(sizes) :]]
    return Topology(
        tuple(Level(f"l{i}", *of) for i, of in enumerate(zip(sizes, links, kinds, strict=True)))
    )


def torus(*sizes, wrap=False, around=()):
    outer = tuple(Level(f"s{i}", n, Link(0, 2e9)) for i, n in enumerate(around))
    axes = (
        Level(f"t{i}", n, Link(0, 3e9 + i * 1e9), "torus", wrap and n > 2)
        for i, n in enumerate(sizes)
    )
    return Topology((*outer, *axes))


TOPOLOGIES = {
    "two levels": tree(3, 4),
    "three levels": tree(2, 3, 4),
    "fast outside": tree(2, 2, 4, bandwidths=(9e9, 4e9, 6e9)),
    "full": tree(5, last="full"),
    "full in servers": tree(3, 4, last="full"),
    "full in racks": tree(2, 2, 3, last="full"),
    "line": torus(6),
    "ring": torus(6, wrap=True),
    "mesh": torus(4, 3),
    "torus": torus(4, 4, wrap=True),
    "slices": torus(3, 2, around=(2,)),
    "wrapped slices": torus(4, 3, wrap=True, around=(2,)),
}
LINKS = {name: Links(topology) for name, topology in TOPOLOGIES.items()}


def meshes(count):
    """Meshes of up to three axes over all devices, with some axes; and some that leave devices out."""
    sizes = {s for s in product(range(1, count + 1), repeat=3) if prod(s) == count}
    yield from (
        (mesh, axes) for mesh in sorted(sizes) for axes in ((0,), (1,), (2,), (0, 2), (0, 1, 2))
    )
    yield from (
        ((count - 1,), (0,)),
        ((2, count // 2), (0,)),
        ((count // 2, 2), (0,)),
        ((2, count // 3), (1,)),
    )


def cases():
    """Each grouping of the devices once: (name of the topology, mesh, axes)."""
    for name, topology in TOPOLOGIES.items():
        seen = set()
        for mesh, axes in meshes(topology.device_count):
            groups = tuple(map(tuple, device_groups(mesh, axes).tolist()))
            if len(groups[0]) > 1 and groups not in seen:
                seen.add(groups)
                yield name, mesh, axes


CASES = list(cases())


def case(name, mesh, axes):
    topology = TOPOLOGIES[name]
    return LINKS[name], group(topology, mesh, axes), device_groups(mesh, axes).tolist()


def by_level(topology, groups, size, scatter):
    """Rounds of a reduce-scatter level by level, innermost first; `scatter` is how it is done on each level."""
    schedule, stride = [], 1
    for level in reversed(topology.levels):
        parts = [
            peers for members in groups for peers in peers_of(topology, members, level, stride)
        ]
        schedule += together(*(scatter(level, stride, peers, size) for peers in parts))
        size /= len(parts[0])
        stride *= level.size
    return schedule


def peers_of(topology, members, level, stride):
    """The members of a group that differ only in their place on `level`, and where they stand inside of its units."""
    found = {}
    for device in members:
        outside = device // (stride * level.size)
        unit = [d for d in members if d // stride == device // stride]
        place = device % stride if level.kind == "torus" else unit.index(device)
        found.setdefault((outside, place), []).append(device)
    return list(found.values())


def scatter_on(level, stride, peers, size):
    """A reduce-scatter of peers on one level: straight where all have links, both ways round a ring that closes."""
    if len(peers) == 1:
        return [[]]
    if level.kind == "full":
        return direct_reduce_scatter(peers, size)
    places = [peer // stride % level.size for peer in peers]
    gaps = {b - a for a, b in zip(places, [*places[1:], places[0] + level.size], strict=True)}
    closes = level.kind == "torus" and level.wrap and len(gaps) == 1
    return both_ways(peers, size) if closes else ring_reduce_scatter(peers, size)


def each(topologies=tuple(TOPOLOGIES)):
    """links, group and member lists of all cases on these topologies."""
    return [case(*found) for found in CASES if found[0] in topologies]


SWITCHED = ("two levels", "three levels", "fast outside")


def test_by_level_is_what_its_messages_take():
    regular = 0
    for links, got, groups in each():
        if got.regular:
            regular += 1
            expected = seconds(links, by_level(links.topology, groups, SIZE, scatter_on))
            assert hierarchical_reduce_scatter_time_s(SIZE, got) == pytest.approx(expected), (
                links.topology,
                groups,
            )
    assert regular > 100


def test_one_ring_is_what_its_messages_take():
    for links, got, groups in each((*SWITCHED, "line")):
        expected = seconds(links, together(*(ring_reduce_scatter(g, SIZE) for g in groups)))
        assert ring_reduce_scatter_time_s(SIZE, got) == pytest.approx(expected), (
            links.topology,
            groups,
        )
    for links, got, groups in each(("ring",)):
        if got.tori[0].lanes == 2:
            expected = seconds(links, together(*(both_ways(g, SIZE) for g in groups)))
            assert ring_reduce_scatter_time_s(SIZE, got) == pytest.approx(expected), groups


def test_on_a_full_level_a_ring_is_as_fast_as_sending_straight():
    for links, got, groups in each(("full",)):
        expected = seconds(links, together(*(direct_reduce_scatter(g, SIZE) for g in groups)))
        assert ring_reduce_scatter_time_s(SIZE, got) == pytest.approx(expected)
    pair = group(TOPOLOGIES["full"], (2, 2), (1,))
    # one of the four links
    assert ring_reduce_scatter_time_s(SIZE, pair) == pytest.approx(SIZE / 2 / 5e9)


def test_all_axes_at_once_are_what_their_messages_take():
    for links, got, groups in each(("mesh", "torus")):
        if not (got.regular and len(got.tori) > 1):
            continue
        axes = [(level, links.topology.strides[n]) for n, level in enumerate(links.topology.levels)]
        sizes, expected = [SIZE / len(axes)] * len(axes), 0.0
        for stage in range(len(axes)):
            times = []
            for part in range(len(axes)):
                level, stride = axes[(part + stage) % len(axes)]
                lines = [
                    line
                    for members in groups
                    for line in peers_of(links.topology, members, level, stride)
                ]
                times.append(
                    seconds(
                        links, together(*(scatter_on(level, stride, p, sizes[part]) for p in lines))
                    )
                )
                sizes[part] /= len(lines[0])
            expected += max(times)  # at each stage every part has an axis of its own
        assert multi_axis_reduce_scatter_time_s(SIZE, got) == pytest.approx(expected), groups


def test_all_pairs_at_once_are_what_their_messages_take():
    exact = 0
    for links, got, groups in each():
        everyone = [(a, b, SIZE / len(g)) for g in groups for a in g for b in g if a != b]
        expected, priced = links.round_s(everyone), pairwise_all_to_all_time_s(SIZE, got)
        assert priced >= expected * (1 - 1e-9), (links.topology, groups)
        exact += priced == pytest.approx(expected)
    # the others: uneven groups on a ring, some of whose pairs go the other way round
    assert exact > 0.95 * len(CASES)


@pytest.mark.parametrize("name", [*SWITCHED, "full", "full in servers", "line"])
def test_no_permutation_takes_longer_than_its_price(name):
    rng = np.random.default_rng(7)
    for links, got, groups in each((name,)):
        for _ in range(5):
            sent = [
                (a, b, SIZE)
                for g in groups
                for a, b in zip(g, rng.permutation(g).tolist(), strict=True)
                if a != b
            ]
            assert links.round_s(sent) <= permute_time_s(SIZE, got) * (1 + 1e-9), (
                links.topology,
                sent,
            )


def test_bruck_and_binomial_trees_take_no_longer_than_their_prices():
    for links, got, groups in each((*SWITCHED, "full")):
        exchange = seconds(links, together(*(bruck_all_to_all(g, SIZE) for g in groups)))
        assert exchange <= bruck_all_to_all_time_s(SIZE, got) * (1 + 1e-9), (links.topology, groups)
        if len(got.spans) == 1:
            cast = seconds(links, together(*(binomial_broadcast(g, SIZE) for g in groups)))
            assert tree_broadcast_time_s(SIZE, got) == pytest.approx(cast)
            hand = seconds(links, together(*(binomial_broadcast(g, SIZE, len(g)) for g in groups)))
            assert hand <= binomial_scatter_time_s(SIZE, got) * (1 + 1e-9)


@given(st.integers(2, 9), st.floats(0, 10))
@settings(max_examples=40, deadline=None)
def test_a_chain_takes_what_the_best_number_of_pieces_takes(n, size):
    """With latency 1 and bandwidth 1; a piece waits for the one before it."""
    got = group(Topology((Level("l", n, Link(1.0, 1.0)),)), (n,), (0,))
    links = Links(Topology((Level("l", n, Link(0.0, 1.0)),)))
    times = []
    for pieces in range(1, 12):
        schedule = chain_broadcast(list(range(n)), size, pieces)
        times.append(len(schedule) + seconds(links, schedule))
    assert min(times) * 0.9 <= chain_broadcast_time_s(size, got) <= min(times) * (1 + 1e-9)


NEEDED = {
    "all_gather": lambda i, o: o / (i + o) if i and o else 0,
    "reduce_scatter": lambda i, o: i / (i + o) if i and o else 0,
    "all_reduce": lambda i, o: 1 if i and o else 0,
    "all_to_all": lambda i, o: i * o / (i + o) if i and o else 0,
    "permute": min,
    "broadcast": lambda i, o: 1 if i and o else 0,
}
"""What a set with i members of a group inside needs from the o outside, in parts of S; min: where most are sent in."""


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("kind", list(ALGORITHMS))
def test_no_price_is_below_what_must_cross_a_cut(kind):
    for links, got, groups in each():
        least = least_seconds(links, groups, SIZE, NEEDED[kind])
        assert collective_time_s(kind, SIZE, got) >= least * (1 - 1e-9), (links.topology, groups)


def test_a_price_that_forgets_who_shares_the_link_is_caught():
    links, got, groups = case("two levels", (3, 4), (0,))
    alone = replace(
        got, spans=tuple(replace(s, sharing=1, crossing_members=1.0) for s in got.spans)
    )
    least = least_seconds(links, groups, SIZE, NEEDED["all_gather"])
    assert (
        collective_time_s("all_gather", SIZE, alone)
        < least
        <= collective_time_s("all_gather", SIZE, got)
    )


def test_without_bytes_a_ring_takes_the_latencies_on_the_way_of_a_value():
    """Within one latency: the price goes through the members in device order, the longest way may begin elsewhere."""
    sizes = {"rack": (2, 9e-6), "server": (3, 5e-6), "device": (4, 1e-6)}
    links = Links(
        Topology(tuple(Level(name, n, Link(latency, 1e9)) for name, (n, latency) in sizes.items()))
    )
    for mesh, axes in [
        ((24,), (0,)),
        ((2, 12), (1,)),
        ((6, 4), (0,)),
        ((4, 6), (1,)),
        ((5,), (0,)),
    ]:
        for members in device_groups(mesh, axes).tolist():
            edges = [
                links.latency_s(a, b)
                for a, b in zip(members, [*members[1:], members[0]], strict=True)
            ]
            longest = sum(edges) - min(edges)
            price = ring_reduce_scatter_time_s(0, group(links.topology, mesh, axes))
            assert longest - 9e-6 <= price
            assert price >= sum(edges[:-1]) - 1e-12


def test_a_link_graph_has_all_links_and_no_way_around_them():
    servers = link_graph(TOPOLOGIES["full in servers"])
    # ports out and in, one switch
    assert sum(not isinstance(node, int) for node in servers) == 3 * 2 + 1
    assert nx.shortest_path(servers, 0, 1) == [0, 1]
    assert nx.shortest_path(servers, 1, 6) == [1, "l0 0 out", "switch of l0", "l0 1 in", 6]
    racks = link_graph(TOPOLOGIES["three levels"])
    path = nx.shortest_path(racks, 0, 23)
    assert [racks.edges[e]["level"] for e in pairwise(path)] == [
        "l2",
        "",
        "l1",
        "",
        "l0",
        "l0",
        "",
        "l1",
        "",
        "l2",
    ]
    ring = link_graph(TOPOLOGIES["ring"])
    assert sorted(ring.edges(0)) == [(0, 1), (0, 5)]
