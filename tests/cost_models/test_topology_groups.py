"""The counts of a Group against a slow count from explicit lists of device numbers."""

from itertools import pairwise, permutations, product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import Level, Link, Topology, group
from cost_models.groups import device_groups, group_of_devices

LINK = Link(1e-6, 1e9)


def switches(*sizes):
    return Topology(tuple(Level(f"l{i}", size, LINK) for i, size in enumerate(sizes)))


def torus(*sizes, wrap=False):
    return Topology(
        tuple(Level(f"t{i}", n, LINK, "torus", wrap and n > 2) for i, n in enumerate(sizes))
    )


def groups_by_coordinates(mesh, axes):
    """Device lists: two devices are together if they agree on all other mesh axes."""
    found = {}
    for device, coords in enumerate(product(*map(range, mesh))):
        found.setdefault(tuple(c for i, c in enumerate(coords) if i not in axes), []).append(device)
    return list(found.values())


def unit_of(topology, device, level):
    """The unit of `level` that holds `device`, as the tuple of its coordinates down to that level."""
    coords = []
    for size in reversed(topology.sizes):
        coords.append(device % size)
        device //= size
    return tuple(reversed(coords))[: level + 1]


def slow_switch_counts(topology, groups, level):
    """sharing, crossing_members, crossing_pairs, units, edges, fanout, by going through messages one by one."""
    ring, members, pairs, units, edges, fanout = {}, {}, {}, 1, 0, 1
    for devices in groups:
        held = {unit_of(topology, d, level) for d in devices}
        units = max(units, len(held))
        fanout = max([fanout] + [sum(u[:-1] == parent[:-1] for u in held) for parent in held])
        steps = [
            (unit_of(topology, a, level), unit_of(topology, b, level)) for a, b in pairwise(devices)
        ]
        edges = max(edges, sum(a[:-1] == b[:-1] and a != b for a, b in steps))
        for a, b in zip(devices, devices[1:] + devices[:1], strict=True):
            if unit_of(topology, a, level) != unit_of(topology, b, level):
                ring[unit_of(topology, a, level)] = ring.get(unit_of(topology, a, level), 0) + 1
        for unit in held:
            inside = [d for d in devices if unit_of(topology, d, level) == unit]
            outside = [d for d in devices if unit_of(topology, d, level) != unit]
            members[unit] = members.get(unit, 0) + len(list(zip(inside, outside, strict=False)))
            pairs[unit] = pairs.get(unit, 0) + sum(
                1 / len(devices) for _ in product(inside, outside)
            )
    return (*(max(c.values(), default=0) for c in (ring, members, pairs)), units, edges, fanout)


def slow_regular(topology, groups, level):
    """Whether all groups have as many members in each unit, and as many units under each parent."""
    members, fanouts = set(), set()
    for devices in groups:
        units = [unit_of(topology, d, level) for d in devices]
        members |= {units.count(unit) for unit in units}
        fanouts |= {len({u for u in units if u[:-1] == parent[:-1]}) for parent in units}
    return len(members) == 1 and len(fanouts) == 1


@st.composite
def meshes(draw, devices):
    """A mesh of at most `devices` devices, and some of its axes in any order."""
    sizes = []
    while len(sizes) < 4 and devices > 1:
        sizes.append(draw(st.integers(1, devices)))
        devices //= sizes[-1]
    sizes = sizes or [1]
    axes = draw(st.lists(st.integers(0, len(sizes) - 1), unique=True))
    return tuple(sizes), tuple(axes)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
@settings(max_examples=150, deadline=None)
def test_switch_counts_are_those_of_explicit_messages(sizes, data):
    topology = switches(*sizes)
    mesh, axes = data.draw(meshes(topology.device_count))
    got = group(topology, mesh, axes)
    groups = groups_by_coordinates(mesh, axes)
    assert sorted(map(tuple, device_groups(mesh, axes).tolist())) == sorted(map(tuple, groups))
    assert got.size == len(groups[0])
    for level, span in enumerate(got.spans):
        sharing, members, pairs, units, edges, fanout = slow_switch_counts(topology, groups, level)
        assert (span.sharing, span.crossing_members) == (sharing, members)
        assert span.crossing_pairs == pytest.approx(pairs)
        if sharing:
            assert (span.units, span.edges, span.fanout) == (units, edges, fanout)
    assert got.regular == all(slow_regular(topology, groups, level) for level in range(len(sizes)))


@pytest.mark.parametrize(
    ("mesh", "axes", "sharing", "units", "regular"),
    [
        (
            (2, 4),
            (0,),
            (4, 1),
            (2, 2),
            True,
        ),  # one member in each server, four groups share each uplink
        ((2, 4), (1,), (0, 1), (1, 4), True),  # inside a server
        ((2, 4), (1, 0), (1, 1), (2, 8), True),  # all devices, any order
        ((4, 2), (0,), (2, 1), (2, 4), True),  # straddles: two members in each of two servers
        ((2, 3), (0,), (2, 1), (2, 2), False),  # {0,3} in one server, {1,4} and {2,5} in two
        ((8,), (), (0, 0), (1, 1), True),
    ],
)
def test_groups_of_two_servers_of_four(mesh, axes, sharing, units, regular):
    got = group(switches(2, 4), mesh, axes)
    assert tuple(span.sharing for span in got.spans) == sharing
    assert tuple(span.units for span in got.spans) == units
    assert got.regular == regular


def slow_line_counts(size, rings, wrap):
    """sharing and all-pairs load on one line, by walking along links.

    `rings` are the member places of the groups. A load counts one direction of the busiest link.
    """

    def walk(a, b, step):
        while a != b:
            yield a, step
            a = (a + step) % size

    def load(weights_of_ring):
        total = {}
        for ring in rings:
            best = weights_of_ring(ring)
            for link, weight in best.items():
                total[link] = total.get(link, 0) + weight
        return max(total.values(), default=0)

    def messages(pairs):
        weights = {}
        for (a, b), share in pairs:
            if wrap:
                up, down = (b - a) % size, (a - b) % size
                ways = [(1, 0.5), (-1, 0.5)] if up == down else [(1 if up < down else -1, 1.0)]
            else:
                ways = [(1 if b > a else -1, 1.0)]
            for step, part in ways:
                for link in walk(a, b, step):
                    weights[link] = weights.get(link, 0) + share * part
        return weights

    all_pairs = load(lambda r: messages([((a, b), 1 / len(r)) for a, b in permutations(r, 2)]))
    ring = load(
        lambda r: (
            {(place, 1): 1 for place in range(size)}
            if wrap
            else {(p, 1): 1 for p in range(r[0], r[-1])}
        )
    )
    return ring, all_pairs


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize(
    ("size", "stride", "members"), [(4, 1, 4), (8, 2, 4), (6, 2, 3), (5, 1, 5), (8, 4, 2)]
)
def test_torus_counts_are_those_of_walked_links(wrap, size, stride, members):
    """Strided groups interleave on one axis: mesh (members, stride), first axis."""
    span = group(torus(size, wrap=wrap), (members, stride), (0,)).spans[0]
    rings = [[start + stride * i for i in range(members)] for start in range(stride)]
    ring, all_pairs = slow_line_counts(size, rings, wrap)
    assert span.sharing == ring
    assert span.crossing_pairs == pytest.approx(all_pairs)
    assert span.lanes == (2 if wrap else 1)
    assert span.hops == (size // 2 if wrap else stride * (members - 1))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_crossing_members_on_a_line_are_the_worst_permutation(size):
    span = group(torus(size), (size,), (0,)).spans[0]
    worst = max(
        sum(a <= link < b for a, b in enumerate(order))
        for order in permutations(range(size))
        for link in range(size)
    )
    assert span.crossing_members == worst


@pytest.mark.parametrize("size", [3, 4, 5, 8])
def test_crossing_members_on_a_ring_are_the_worst_shift_split_both_ways(size):
    span = group(torus(size, wrap=True), (size,), (0,)).spans[0]
    shares = np.linspace(0, 1, 1001)
    worst = max(np.maximum(shares * k, (1 - shares) * (size - k)).min() for k in range(1, size))
    assert span.crossing_members == pytest.approx(worst, rel=2e-3)


def test_a_torus_group_has_a_ring_on_each_line_and_irregular_ones_are_boxed():
    whole = group(torus(4, 4), (16,), (0,))
    assert [(s.fanout, s.sharing, s.hops) for s in whole.spans] == [(4, 1, 3), (4, 1, 3)]
    rows = group(torus(4, 4), (2, 8), (1,))
    assert [(s.fanout, s.sharing) for s in rows.spans] == [(2, 1), (4, 1)]
    assert whole.regular
    assert rows.regular
    boxed = group(torus(4, 4), (6,), (0,))  # one row and a half
    assert not boxed.regular
    assert [(s.fanout, s.sharing) for s in boxed.spans] == [(2, 1), (4, 1)]


def test_slices_on_a_network_are_two_levels():
    topology = Topology((Level("slice", 2, LINK), *torus(4, 4).levels))
    across = group(topology, (2, 16), (0,))
    assert [(s.fanout, s.sharing) for s in across.spans] == [(2, 16), (1, 0), (1, 0)]
    everything = group(topology, (32,), (0,))
    assert [(s.fanout, s.sharing) for s in everything.spans] == [(2, 1), (4, 1), (4, 1)]
    assert everything.regular


def test_a_full_level_has_a_link_for_each_pair():
    topology = Topology((Level("server", 2, LINK), Level("device", 4, LINK, "full")))
    inside, pairs, across = (
        group(topology, mesh, axes)
        for mesh, axes in (((2, 4), (1,)), ((4, 2), (1,)), ((2, 4), (0,)))
    )
    assert [
        (s.sharing, s.crossing_members, s.crossing_pairs, s.hops)
        for s in (inside.spans[1], pairs.spans[1])
    ] == [
        (1 / 3, 1.0, 1 / 4, 1),
        (1.0, 1.0, 1 / 2, 1),
    ]
    assert across.spans[1].sharing == 0  # what leaves the server passes none of its links
    assert (across.spans[0].sharing, across.spans[0].fanout) == (4, 2)
    uneven = group(topology, (7,), (0,))  # four and three: the three have fewer links
    assert uneven.spans[1].sharing == 1 / 2
    assert not uneven.regular


def test_large_clusters_are_counted_quickly():
    got = group(switches(64, 8, 8), (64, 8, 8), (0, 2))
    assert got.size == 512
    assert prod(span.fanout for span in got.spans) == 512


@pytest.mark.parametrize(
    ("mesh", "axes"), [((3, 3), (0,)), ((2, 4), (2,)), ((2, 4), (0, 0)), ((2, 4), (-1,))]
)
def test_impossible_groups_are_refused(mesh, axes):
    with pytest.raises(ValueError, match=r"mesh|axes"):
        group(switches(2, 4), mesh, axes)


def test_impossible_topologies_are_refused():
    with pytest.raises(ValueError, match="distinct"):
        Topology((Level("a", 2, LINK), Level("a", 2, LINK)))
    with pytest.raises(ValueError, match=r"innermost, got a \(torus\), b \(switch\)"):
        Topology((Level("a", 2, LINK, "torus"), Level("b", 2, LINK)))
    with pytest.raises(ValueError, match="innermost"):
        Topology((Level("a", 2, LINK, "full"), Level("b", 2, LINK, "torus")))
    with pytest.raises(ValueError, match="innermost"):
        Topology((Level("a", 2, LINK, "full"), Level("b", 2, LINK, "full")))
    with pytest.raises(ValueError, match="wraps"):
        Level("a", 2, LINK, "torus", wrap=True)
    with pytest.raises(ValueError, match="size 0"):
        Level("a", 0, LINK)
    with pytest.raises(ValueError, match="bandwidth"):
        Link(0.0, 0.0)
    with pytest.raises(ValueError, match="latency"):
        Link(-1.0, 1.0)


@given(sizes=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4), data=st.data())
@settings(deadline=None)
def test_axes_side_by_side_are_one_axis(sizes, data):
    """Whatever the shape of the mesh is called, the same devices are the same groups."""
    axes = data.draw(st.lists(st.sampled_from(range(len(sizes))), unique=True))
    topology = switches(6, 54)
    counted = group_of_devices(topology, device_groups(tuple(sizes), tuple(axes)))
    assert group(topology, tuple(sizes), tuple(axes)) == counted
