"""Collectives message by message: rounds of (source, target, bytes) on the links of a topology, slowly.

Nothing here looks at `Group`: messages are routed over `link_graph`, the bytes on each link are added up, and a round
takes as long as its busiest link. What the messages carry is followed as well, so that a schedule that does not do
what the collective promises is an error.
"""

from collections import defaultdict
from functools import cached_property
from itertools import pairwise
from math import inf

import networkx as nx

from cost_models import link_graph


class Links:
    """Routes on the links of one topology."""

    def __init__(self, topology):
        self.topology = topology
        self.graph = link_graph(topology)
        self.tori = [n for n, level in enumerate(topology.levels) if level.kind == "torus"]
        self.known = {}

    def routes(self, source, target):
        """(part of the message, edges) for each way it takes: two on a ring where both are as short."""
        if (source, target) not in self.known:
            self.known[source, target] = list(self._routes(source, target))
        return self.known[source, target]

    def _routes(self, source, target):
        torus = (
            self.topology.strides[self.tori[0]] * self.topology.sizes[self.tori[0]]
            if self.tori
            else 1
        )
        if self.tori and source // torus == target // torus:
            return self._along_axes(source, target)
        path = nx.shortest_path(self.graph, source, target)
        return [(1.0, list(pairwise(path)))]

    def _along_axes(self, source, target):
        """Axis after axis, the innermost last; the shorter way round."""
        ways = [(1.0, source, [])]
        for position in self.tori:
            level, stride = self.topology.levels[position], self.topology.strides[position]
            there = target // stride % level.size
            ways = [way for old in ways for way in self._along_axis(old, level, stride, there)]
        return [(part, edges) for part, _, edges in ways]

    def _along_axis(self, way, level, stride, there):
        part, device, edges = way
        here = device // stride % level.size
        up = (there - here) % level.size
        if not level.wrap:
            steps = [(1.0, 1, there - here)] if there > here else [(1.0, -1, here - there)]
        elif 2 * up == level.size:
            steps = [(0.5, 1, up), (0.5, -1, up)]
        else:
            steps = [(1.0, 1, up)] if up < level.size - up else [(1.0, -1, level.size - up)]
        for share, direction, count in steps:
            at, walked = device, list(edges)
            for _ in range(count):
                place = at // stride % level.size
                after = at + ((place + direction) % level.size - place) * stride
                walked.append((at, after))
                at = after
            yield part * share, at, walked

    @cached_property
    def cuts(self):
        """(devices, bytes/s that can flow into them) for the units of all levels, and halves of tori."""
        sets = {frozenset(inside) for inside in device_sets(self.topology)}
        count = self.topology.device_count
        return [
            (inside, capacity(self.graph, count, inside)) for inside in sets if len(inside) < count
        ]

    def loads(self, messages):
        """Bytes on each edge."""
        load = defaultdict(float)
        for source, target, size in messages:
            for part, edges in self.routes(source, target):
                for edge in edges:
                    load[edge] += part * size
        return load

    def round_s(self, messages):
        """Seconds of messages (source, target, bytes) that are sent at once: of the busiest link, without latency."""
        loads = self.loads(messages).items()
        return max(
            (size / self.graph.edges[edge]["bandwidth_bytes_per_s"] for edge, size in loads),
            default=0.0,
        )

    def latency_s(self, source, target):
        """Of a message: of the outermost level that it crosses, or of all hops along tori."""
        edges = self.routes(source, target)[0][1]
        data = [self.graph.edges[edge] for edge in edges]
        names = [level.name for level in self.topology.levels]
        crossed = [d for d in data if d["level"]]
        if all(self.topology.levels[names.index(d["level"])].kind == "torus" for d in crossed):
            return sum(d["latency_s"] for d in crossed)
        return min(crossed, key=lambda d: names.index(d["level"]))["latency_s"]


def together(*schedules):
    """Schedules (lists of rounds) of several groups that run at once, as one."""
    rounds = max(map(len, schedules))
    return [[m for s in schedules if turn < len(s) for m in s[turn]] for turn in range(rounds)]


def seconds(links, schedule):
    """Of a schedule whose rounds wait for one another."""
    return sum(links.round_s(messages) for messages in schedule)


def ring_reduce_scatter(members, size):
    """n - 1 rounds: block b goes round from member b + 1 to member b, and every member adds its own."""
    n = len(members)
    # has[member][block] = whose values are in its sum
    has = [[{i} for _ in range(n)] for i in range(n)]
    schedule = []
    for turn in range(n - 1):
        sent = [(i, (i + 1) % n, (i - 1 - turn) % n) for i in range(n)]
        moved = [(j, b, set(has[i][b])) for i, j, b in sent]
        for j, b, values in moved:
            assert not has[j][b] & values
            has[j][b] |= values
        schedule.append([(members[i], members[j], size / n) for i, j, _ in sent])
    assert all(has[i][i] == set(range(n)) for i in range(n))
    return schedule


def both_ways(members, size):
    """A ring in each direction, half of the data each."""
    one, other = (
        ring_reduce_scatter(members, size / 2),
        ring_reduce_scatter(members[::-1], size / 2),
    )
    return together(one, other)


def direct_reduce_scatter(members, size):
    """One round: each sends each other its block."""
    return [[(a, b, size / len(members)) for a in members for b in members if a != b]]


def binomial_broadcast(members, size, parts=1):
    """ceil(log2 n) rounds: the farthest half first; with parts = n each message is what the half beyond needs."""
    n, has, schedule = len(members), {0}, []
    bit = 1
    while bit < n:
        bit *= 2
    while bit > 1:
        half, sent = bit // 2, []
        for i in sorted(has):
            if i % bit == 0 and i + half < n:
                reached = min(half, n - i - half)
                sent.append(
                    (members[i], members[i + half], size * (reached / n if parts > 1 else 1))
                )
        has |= {members.index(m) for _, m, _ in sent}
        schedule.append(sent)
        bit = half
    assert has == set(range(n))
    return schedule


def chain_broadcast(members, size, pieces):
    """n - 2 + pieces rounds: piece p is at member m after round m + p."""
    rounds = len(members) - 2 + pieces
    return [
        [
            (members[m], members[m + 1], size / pieces)
            for m in range(len(members) - 1)
            if 0 <= turn - m < pieces
        ]
        for turn in range(rounds)
    ]


def bruck_all_to_all(members, size):
    """ceil(log2 n) rounds: blocks whose distance to go has bit k are sent 2^k members on."""
    n, step, schedule = len(members), 1, []
    has = [{(i, (i + d) % n) for d in range(n)} for i in range(n)]  # (from, to)
    while step < n:
        sent = [{(a, b) for a, b in has[i] if (b - i) % n & step} for i in range(n)]
        for i in range(n):
            has[i] -= sent[i]
        for i in range(n):
            has[(i + step) % n] |= sent[i]
        schedule.append(
            [(members[i], members[(i + step) % n], len(sent[i]) * size / n) for i in range(n)]
        )
        step *= 2
    assert all({b for _, b in has[i]} == {i} and len(has[i]) == n for i in range(n))
    return schedule


def least_seconds(links, groups, size, into):
    """No schedule is faster: of each set of devices, the bytes that must come in over the capacity of its links.

    `into(inside, outside)` is the part of `size` that the members inside a set need of those outside, for a group.
    """
    sets = [set(group) for group in groups]
    needed = [sum(into(len(inside & g), len(g - inside)) for g in sets) for inside, _ in links.cuts]
    return max(n * size / width for n, (_, width) in zip(needed, links.cuts, strict=True))


def device_sets(topology):
    """The units of every level, and on a torus the first half of every axis of every line and plane."""
    devices = range(topology.device_count)
    for stride, size in zip(topology.strides, topology.sizes, strict=True):
        yield from (
            {d for d in devices if d // stride == unit}
            for unit in range(topology.device_count // stride)
        )
        yield from ({d for d in devices if d // stride % size < cut} for cut in range(1, size))


def capacity(links_graph, device_count, inside):
    """The bytes/s that can flow into a set of devices from all others: a minimum cut."""
    graph = nx.DiGraph()
    for one, other, edge in links_graph.edges(data=True):
        width = edge["bandwidth_bytes_per_s"]
        graph.add_edge(one, other, **({} if width == inf else {"capacity": width}))
    for device in range(device_count):
        graph.add_edge(*(device, "in") if device in inside else ("out", device))
    return nx.minimum_cut_value(graph, "out", "in")
