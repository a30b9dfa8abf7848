"""The inner loops of the search on flat arrays (see `flat`): messages, choices, memory."""

from __future__ import annotations

import numpy as np

from autopar.solve.flat import Flat, Memory
from autopar.solve.jit import compiled, compiled_or
from autopar.solve.problem import Floats
from autopar.solve.reduction import Ints


def _gain_by_arrays(p: Flat, v: int, k: int, messages: Floats, gain: Floats) -> None:
    count, other = p.start[v + 1] - p.start[v], p.other[k]
    theirs, rows = p.mail[p.back[k]], p.start[other + 1] - p.start[other]
    costs = p.pool[p.place[k] : p.place[k] + rows * count].reshape(rows, count)
    np.min(costs - messages[theirs : theirs + rows, None], axis=0, out=gain[:count])


@compiled_or(_gain_by_arrays)
def gain_of(p: Flat, v: int, k: int, messages: Floats, gain: Floats) -> None:
    """Writes the row minima of arc k into v: min over s of (cost - message to the other node)."""
    count, other = p.start[v + 1] - p.start[v], p.other[k]
    theirs = p.mail[p.back[k]]
    gain[:count] = np.inf
    for s in range(p.start[other + 1] - p.start[other]):
        message, base = messages[theirs + s], p.place[k] + s * count
        for t in range(count):
            value = p.pool[base + t] - message
            if value < gain[t]:
                gain[t] = value


@compiled
def collect(p: Flat, v: int, begin: int, end: int, nodes: Floats, messages: Floats, gain: Floats) -> None:
    """Moves the row minima of the arcs begin <= k < end into v's costs."""
    first, count = p.start[v], p.start[v + 1] - p.start[v]
    for k in range(begin, end):
        gain_of(p, v, k, messages, gain)
        mine = messages[p.mail[k] : p.mail[k] + count]
        rise = gain[:count] - mine
        nodes[first : first + count] += rise
        mine += rise


@compiled
def hand_on(p: Flat, v: int, begin: int, end: int, nodes: Floats, messages: Floats) -> None:
    """Hands equal shares of v's costs to the arcs begin <= k < end, the rest of the shares left for the other side."""
    others = (p.near[v + 1] - p.near[v]) - (end - begin)
    if end == begin:
        return
    costs = nodes[p.start[v] : p.start[v + 1]]
    part = costs / max(end - begin, others)
    for k in range(begin, end):
        messages[p.mail[k] : p.mail[k] + len(part)] -= part
    costs -= (end - begin) * part


@compiled
def sweep(p: Flat, nodes: Floats, messages: Floats) -> None:
    """Every node, upwards and then downwards, collects from where the sweep comes and hands on to where it goes."""
    gain = np.empty(p.widest)
    count = len(p.start) - 1
    for v in range(count):
        collect(p, v, p.near[v], p.split[v], nodes, messages, gain)
        hand_on(p, v, p.split[v], p.near[v + 1], nodes, messages)
    for v in range(count - 1, -1, -1):
        collect(p, v, p.split[v], p.near[v + 1], nodes, messages, gain)
        hand_on(p, v, p.near[v], p.split[v], nodes, messages)


@compiled
def bound_of(p: Flat, nodes: Floats, messages: Floats) -> float:
    """The sum of the least reparametrised cost of every node and every edge."""
    gain = np.empty(p.widest)
    total = 0.0
    for v in range(len(p.start) - 1):
        total += float(nodes[p.start[v] : p.start[v + 1]].min())
        count = p.start[v + 1] - p.start[v]
        for k in range(p.near[v], p.split[v]):
            gain_of(p, v, k, messages, gain)
            total += float((gain[:count] - messages[p.mail[k] : p.mail[k] + count]).min())
    return total


@compiled
def decode(p: Flat, nodes: Floats, messages: Floats, choice: Ints) -> None:
    """Writes a choice, upwards: the cheapest given the lower nodes' strategies and the higher nodes' messages."""
    total = np.empty(p.widest)
    for v in range(len(p.start) - 1):
        count = p.start[v + 1] - p.start[v]
        total[:count] = nodes[p.start[v] : p.start[v + 1]]
        for k in range(p.near[v], p.split[v]):
            s = choice[p.other[k]]
            message, base = messages[p.mail[p.back[k]] + s], p.place[k] + s * count
            total[:count] += p.pool[base : base + count] - message - messages[p.mail[k] : p.mail[k] + count]
        choice[v] = np.argmin(total[:count])


@compiled
def add_prices(p: Flat, prices: Floats, nodes: Floats) -> None:
    """Adds to the cost of every strategy the price of its bytes."""
    m = p.memory
    sums = np.zeros(m.rows + 1)
    for r in range(m.rows):
        sums[r + 1] = sums[r] + prices[r]
    for i in range(len(m.node)):
        price = sums[m.high[i]] - sums[m.low[i]]
        if price != 0.0:
            first = p.start[m.node[i]]
            count = p.start[m.node[i] + 1] - first
            nodes[first : first + count] += price * m.size[m.at[i] : m.at[i] + count]


@compiled
def use_of(m: Memory, choice: Ints, used: Floats) -> None:
    """Writes the bytes in use in every row."""
    change = np.zeros(m.rows + 1)
    for i in range(len(m.node)):
        size = m.size[m.at[i] + choice[m.node[i]]]
        change[m.low[i]] += size
        change[m.high[i]] -= size
    total = 0.0
    for r in range(m.rows):
        total += change[r]
        used[r] = total


@compiled
def cost_of(p: Flat, costs: Floats, choice: Ints) -> float:
    """The cost of a choice at the given costs of nodes."""
    total = 0.0
    for v in range(len(p.start) - 1):
        total += float(costs[p.start[v] + choice[v]])
        count = p.start[v + 1] - p.start[v]
        for k in range(p.near[v], p.split[v]):
            total += float(p.pool[p.place[k] + choice[p.other[k]] * count + choice[v]])
    return total
