"""The inner loops of the search on flat arrays (see `arrays`): messages, choices, forests, memory.

V. Kolmogorov, "Convergent tree-reweighted message passing for energy minimization", PAMI 28 (2006).
"""

from __future__ import annotations

import numpy as np

from autopar._jit import compiled, compiled_inner
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.reduction import Ints
from autopar.solve.trws.arrays import Flat, Memory

NOTHING = np.zeros(0)
"""In place of beliefs that are not wanted."""


@compiled_inner
def entry(p: Flat, k: int, s: int, t: int) -> float:
    """What strategy t costs at the end of arc k where its beginning has strategy s."""
    row = p.class_of[p.rows_at[k] + s]
    column = p.class_of[p.columns_at[k] + t]
    return float(p.pool[p.thin[k] + row * p.wide[k] + column])


@compiled_inner
def add_row(p: Flat, k: int, s: int, total: Floats) -> None:
    """Adds what each strategy costs at the end of arc k where its beginning has strategy s."""
    wide = p.wide[k]
    count = len(total)
    base = p.thin[k] + p.class_of[p.rows_at[k] + s] * wide
    if wide == count:  # no two columns are equal: each is its own class, which saves looking it up
        for t in range(count):
            total[t] += p.pool[base + t]
        return
    for t in range(count):
        total[t] += p.pool[base + p.class_of[p.columns_at[k] + t]]


@compiled_inner
def gain_of(p: Flat, v: int, k: int, messages: Floats, gain: Floats) -> None:
    """Writes the row minima of arc k into v: min over s of (cost - message to the other node).

    Equal rows are one with the highest of their messages, equal columns one column; where no two are, their classes
    need not be looked up. `gain` has room for three nodes.
    """
    count = p.start[v + 1] - p.start[v]
    other = p.other[k]
    theirs = p.mail[p.back[k]]
    tall = p.tall[k]
    wide = p.wide[k]
    rows = p.start[other + 1] - p.start[other]
    highest = gain[p.widest : p.widest + tall]
    if tall == rows:
        for s in range(rows):
            highest[s] = messages[theirs + s]
    else:
        for r in range(tall):
            highest[r] = -np.inf
        for s in range(rows):
            row = p.class_of[p.rows_at[k] + s]
            highest[row] = max(highest[row], messages[theirs + s])

    first = 0 if wide == count else 2 * p.widest
    least = gain[first : first + wide]
    for t in range(wide):
        least[t] = np.inf

    matrix = p.pool[p.thin[k] : p.thin[k] + tall * wide].reshape(tall, wide)
    for r in range(tall):
        message = highest[r]
        row_of = matrix[r]  # a slice, since only those are turned into vector instructions
        for t in range(wide):
            value = row_of[t] - message
            least[t] = value if value < least[t] else least[t]

    if wide < count:
        for t in range(count):
            gain[t] = least[p.class_of[p.columns_at[k] + t]]


@compiled_inner
def visit(
    p: Flat,
    v: int,
    eager: bool,
    came: tuple[int, int],
    go: tuple[int, int],
    nodes: Floats,
    messages: Floats,
    gain: Floats,
) -> None:
    """Moves the row minima of the arcs in `came` into v's costs; hands equal shares of these to the arcs in `go`.

    Ranges are (first, behind the last). The rest of the shares is left for the other side; if `eager`, there is none.
    """
    count = p.start[v + 1] - p.start[v]
    costs = nodes[p.start[v] : p.start[v + 1]]
    least = gain[:count]
    for k in range(came[0], came[1]):
        gain_of(p, v, k, messages, gain)
        mine = messages[p.mail[k] : p.mail[k] + count]
        for t in range(count):
            rise = least[t] - mine[t]
            costs[t] += rise
            mine[t] += rise

    going = go[1] - go[0]
    if not going:
        return

    shares = going if eager else max(going, p.near[v + 1] - p.near[v] - going)
    for t in range(count):
        least[t] = costs[t] / shares

    for k in range(go[0], go[1]):
        mine = messages[p.mail[k] : p.mail[k] + count]
        for t in range(count):
            mine[t] -= least[t]

    for t in range(count):
        costs[t] -= going * least[t]


@compiled_inner
def visit_in_turn(
    p: Flat, turn: int, eager: bool, nodes: Floats, messages: Floats, belief: Floats, gain: Floats
) -> None:
    """The visit of a sweep whose turn it is: of all nodes upwards, then of all downwards.

    On the way down, what each strategy costs in between is written to `belief`, unless that is empty.
    """
    v = turn if turn < len(p.split) else 2 * len(p.split) - 1 - turn
    first = p.near[v]
    middle = p.split[v]
    last = p.near[v + 1]
    if v == turn:
        visit(p, v, eager, (first, middle), (middle, last), nodes, messages, gain)
        return
    visit(p, v, eager, (middle, last), (middle, middle), nodes, messages, gain)
    if len(belief):
        for t in range(p.start[v], p.start[v + 1]):
            belief[t] = nodes[t]
    visit(p, v, eager, (middle, middle), (first, middle), nodes, messages, gain)


@compiled
def sweep(p: Flat, eager: bool, nodes: Floats, messages: Floats, belief: Floats) -> None:
    """Every node, upwards and then downwards, hands on equal shares of its costs, or all if `eager`.

    `belief` as in `visit_in_turn`; `NOTHING` where it is not wanted.
    """
    gain = np.empty(3 * p.widest, dtype=p.pool.dtype)
    for turn in range(2 * len(p.split)):
        visit_in_turn(p, turn, eager, nodes, messages, belief, gain)


@compiled
def push(p: Flat, far: float, before: Floats, nodes: Floats, messages: Floats) -> None:
    """Moves messages on by `far` times the way that they came from `before`, and nodes' costs with them.

    Then `before` is where they were.
    """
    for v in range(len(p.start) - 1):
        mine = nodes[p.start[v] : p.start[v + 1]]
        count = p.start[v + 1] - p.start[v]
        for k in range(p.near[v], p.near[v + 1]):
            now = messages[p.mail[k] : p.mail[k] + count]
            then = before[p.mail[k] : p.mail[k] + count]
            for t in range(count):
                way = far * (now[t] - then[t])
                then[t] = now[t]
                now[t] += way
                mine[t] += way


def bound_after(p: Flat, nodes: Floats) -> float:
    """The sum of what is least at nodes: right after a sweep the least of every edge is 0."""
    return float(np.minimum.reduceat(nodes, p.start[:-1]).sum(dtype=np.float64))


@compiled
def bound_of(p: Flat, nodes: Floats, messages: Floats) -> float:
    """The sum of the least reparametrised cost of every node and every edge."""
    gain = np.empty(3 * p.widest)
    total = 0.0
    for v in range(len(p.start) - 1):
        total += float(nodes[p.start[v] : p.start[v + 1]].min())
        count = p.start[v + 1] - p.start[v]
        for k in range(p.near[v], p.split[v]):
            gain_of(p, v, k, messages, gain)
            low = np.inf
            for t in range(count):
                low = min(low, gain[t] - messages[p.mail[k] + t])
            total += low
    return total


@compiled_inner
def add_excess(p: Flat, v: int, k: int, messages: Floats, gain: Floats, excess: Floats) -> float:
    """Adds to the excess of v what arc k adds above the least that it adds to any strategy. Returns that least."""
    gain_of(p, v, k, messages, gain)
    count = p.start[v + 1] - p.start[v]
    low = np.inf
    for t in range(count):
        gain[t] -= messages[p.mail[k] + t]
        low = min(low, gain[t])
    for t in range(count):
        excess[p.start[v] + t] += gain[t] - low
    return float(low)


@compiled
def reparametrise(p: Flat, nodes: Floats, messages: Floats, excess: Floats) -> float:
    """Takes from the costs of every node (messages included) their least, and adds to it what its edges add at least.

    `excess` is what a strategy costs above the least of all, its edges included. Returns the sum of what is least.
    """
    gain = np.empty(3 * p.widest)
    total = 0.0
    for v in range(len(p.start) - 1):
        mine = nodes[p.start[v] : p.start[v + 1]]
        least = mine.min()
        for t in range(len(mine)):
            mine[t] -= least
            excess[p.start[v] + t] += mine[t]
        total += float(least)
        for k in range(p.near[v], p.split[v]):
            total += add_excess(p, v, k, messages, gain, excess)
            add_excess(p, p.other[k], p.back[k], messages, gain, excess)

    return total


@compiled
def decode(p: Flat, nodes: Floats, messages: Floats, choice: Ints) -> None:
    """Writes a choice, upwards: the cheapest given the lower nodes' strategies and the higher nodes' messages."""
    total = np.empty(p.widest)
    for v in range(len(p.start) - 1):
        add_lower(p, v, nodes, messages, choice, total)
        choice[v] = np.argmin(total[: p.start[v + 1] - p.start[v]])


@compiled_inner
def add_lower(
    p: Flat, v: int, nodes: Floats, messages: Floats, choice: Ints, total: Floats
) -> None:
    """Writes what each strategy of v costs given the lower nodes' strategies and the higher nodes' messages."""
    count = p.start[v + 1] - p.start[v]
    for t in range(count):
        total[t] = nodes[p.start[v] + t]

    for k in range(p.near[v], p.split[v]):
        s = choice[p.other[k]]
        message = messages[p.mail[p.back[k]] + s]
        mine = messages[p.mail[k] : p.mail[k] + count]
        base = p.thin[k] + p.class_of[p.rows_at[k] + s] * p.wide[k]
        wide = p.wide[k]
        row = p.pool[base : base + wide]
        columns = p.class_of[p.columns_at[k] : p.columns_at[k] + count]
        for t in range(count):
            total[t] += float(row[columns[t]]) - message - mine[t]


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
            for s in range(count):
                nodes[first + s] += price * m.size[m.at[i] + s]


@compiled_inner
def add_up(change: Floats, sums: Floats) -> None:
    """Writes the sums of all changes up to each place."""
    total = 0.0
    for r in range(len(sums)):
        total += change[r]
        sums[r] = total


@compiled
def use_of(m: Memory, choice: Ints, used: Floats) -> None:
    """Writes the bytes in use in every row."""
    change = np.zeros(m.rows + 1)
    for i in range(len(m.node)):
        size = m.size[m.at[i] + choice[m.node[i]]]
        change[m.low[i]] += size
        change[m.high[i]] -= size
    add_up(change, used)


@compiled
def cost_of(p: Flat, costs: Floats, choice: Ints) -> float:
    """The cost of a choice at the given costs of nodes."""
    total = 0.0
    for v in range(len(p.start) - 1):
        total += float(costs[p.start[v] + choice[v]])
        for k in range(p.near[v], p.split[v]):
            total += entry(p, k, int(choice[p.other[k]]), int(choice[v]))
    return total
