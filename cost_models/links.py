"""The links of a topology as a graph of networkx: to look at, to draw, and to route messages over.

Prices do not need it: `groups` counts the same links with arrays, from device numbers.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import networkx as nx

from cost_models.topology import Level, Topology

if TYPE_CHECKING:
    Node = int | str
    LinkGraph = nx.DiGraph[Node]


def link_graph(topology: Topology) -> LinkGraph:
    """A directed graph of all links: nodes 0, 1, ... are the devices, all others ports and switches.

    Each edge is one direction of one link and has `level` (its name), `latency_s` and `bandwidth_bytes_per_s`. A unit
    of a switch level has a port ("server 3"), from which its uplink goes to the switch of the unit around
    ("switch of server in pod 1"); a device is its own port. Ports of units that hold a torus or a full level hang on
    each of their devices by edges of level "" that cost nothing: what leaves the unit passes none of the links inside.
    """
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
            _join(graph, device, _port(topology, switches[-1], device // stride))
    return graph


def _port(topology: Topology, position: int, unit: int) -> Node:
    """The node of a unit of that level; -1 is the whole cluster."""
    if topology.strides[position] == 1:
        return unit
    return f"{topology.levels[position].name} {unit}"


def _add_uplinks(graph: LinkGraph, topology: Topology, position: int) -> None:
    """The uplinks of all units of a switch level, and the switches that they go to."""
    level, stride = topology.levels[position], topology.strides[position]
    for unit in range(topology.device_count // stride):
        around = unit // level.size
        outer = "" if position == 0 else f" in {topology.levels[position - 1].name} {around}"
        switch = f"switch of {level.name}{outer}"
        _add(graph, _port(topology, position, unit), switch, level)
        if position > 0 and unit % level.size == 0:
            _join(graph, switch, _port(topology, position - 1, around))


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
    link = level.link
    for ends in ((one, other), (other, one)):
        graph.add_edge(
            *ends, level=level.name, latency_s=link.latency_s, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s
        )


def _join(graph: LinkGraph, one: Node, other: Node) -> None:
    """Both are one place: the way between them is free."""
    for ends in ((one, other), (other, one)):
        graph.add_edge(*ends, level="", latency_s=0.0, bandwidth_bytes_per_s=inf)
