"""The links of a topology as a graph of networkx: to look at, to draw, and to route messages over.

Prices do not need it: `groups` counts the same links with arrays, from device numbers.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from cost_models.topology import Level, Topology

if TYPE_CHECKING:
    import networkx as nx

    Node = int | str
    LinkGraph = nx.DiGraph[Node]


def link_graph(topology: Topology) -> LinkGraph:
    """A directed graph of all links: nodes 0, 1, ... are the devices, all others ports and switches.

    Each edge is one direction of one link and has `level` (its name), `latency_s` and `bandwidth_bytes_per_s`. The
    uplink of a unit goes from its port ("server 3"; a device is its own) to the switch of the unit around ("switch of
    server in pod 1"), on which the port hangs inside by an edge of level "" that costs nothing. A unit that holds a
    torus or a full level has two ports, "slice 3 out" and "slice 3 in", on which all its devices hang so: what leaves
    the unit passes none of the links inside.
    """
    import networkx as nx  # late: importing it takes longer than all else here, and prices need no graph

    graph: LinkGraph = nx.DiGraph()
    graph.add_nodes_from(range(topology.device_count))
    switches = [n for n, level in enumerate(topology.levels) if level.kind == "switch"]
    for position in switches:
        _add_uplinks(graph, topology, position)

    for position, level in enumerate(topology.levels):
        if level.kind == "full":
            _add_full(graph, level, topology.device_count)
        elif level.kind == "torus":
            _add_axis(graph, level, topology.strides[position], topology.device_count)

    if switches and switches[-1] < len(topology.levels) - 1:
        stride = topology.strides[switches[-1]]
        for device in range(topology.device_count):
            out, in_ = _ports(topology, switches[-1], device // stride)
            _join(graph, device, out)
            _join(graph, in_, device)

    return graph


def _ports(topology: Topology, position: int, unit: int) -> tuple[Node, Node]:
    """The nodes by which messages leave and enter a unit of that level."""
    if topology.strides[position] == 1:
        return unit, unit
    port = f"{topology.levels[position].name} {unit}"
    if topology.levels[position + 1].kind == "switch":
        return port, port
    return f"{port} out", f"{port} in"


def _add_uplinks(graph: LinkGraph, topology: Topology, position: int) -> None:
    """The uplinks of all units of a switch level, and the switches that they go to."""
    level = topology.levels[position]
    stride = topology.strides[position]

    for unit in range(topology.device_count // stride):
        around = unit // level.size
        outer = "" if position == 0 else f" in {topology.levels[position - 1].name} {around}"
        switch = f"switch of {level.name}{outer}"
        out, in_ = _ports(topology, position, unit)
        _add_one_way(graph, out, switch, level)
        _add_one_way(graph, switch, in_, level)
        if position > 0 and unit % level.size == 0:
            port, _ = _ports(topology, position - 1, around)
            _join(graph, switch, port)
            _join(graph, port, switch)


def _add_full(graph: LinkGraph, level: Level, device_count: int) -> None:
    for start in range(0, device_count, level.size):
        for one in range(start, start + level.size):
            for other in range(one + 1, start + level.size):
                _add(graph, one, other, level)


def _add_axis(graph: LinkGraph, level: Level, stride: int, device_count: int) -> None:
    """The links between neighbours on one torus axis."""
    for device in range(device_count):
        place = device // stride % level.size
        if place + 1 < level.size:
            _add(graph, device, device + stride, level)
        elif level.wrap:
            _add(graph, device, device - place * stride, level)


def _add(graph: LinkGraph, one: Node, other: Node, level: Level) -> None:
    """A link, in both directions."""
    _add_one_way(graph, one, other, level)
    _add_one_way(graph, other, one, level)


def _add_one_way(graph: LinkGraph, source: Node, target: Node, level: Level) -> None:
    link = level.link
    graph.add_edge(
        source,
        target,
        level=level.name,
        latency_s=link.latency_s,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
    )


def _join(graph: LinkGraph, source: Node, target: Node) -> None:
    """Both are one place: the way from one to the other is free."""
    graph.add_edge(source, target, level="", latency_s=0.0, bandwidth_bytes_per_s=inf)
