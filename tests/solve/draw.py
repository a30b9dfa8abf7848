"""Small problems drawn by hypothesis: ties, forbidden entries, parallel edges, equal rows, memory limits."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from autopar.solve import Edge, Problem, Usage


@st.composite
def problems(
    draw: st.DrawFn, limited: bool | None = None, max_nodes: int = 6, max_strategies: int = 3
) -> Problem:
    """A valid problem, possibly infeasible; `limited` says whether it has a usage limit (None: either)."""
    counts = draw(st.lists(st.integers(1, max_strategies), min_size=1, max_size=max_nodes))
    whole = draw(st.booleans())
    number = st.integers(0, 4).map(float) if whole else st.floats(0, 1, width=16)
    rare_inf = st.one_of(number, number, number, number, st.just(np.inf))

    def array(element: st.SearchStrategy[float], *shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        return np.array(draw(st.lists(element, min_size=size, max_size=size)), dtype=float).reshape(
            shape
        )

    costs = tuple(array(rare_inf if draw(st.booleans()) else number, count) for count in counts)
    edges: list[Edge] = []
    if len(counts) > 1:
        pairs = st.tuples(st.integers(0, len(counts) - 1), st.integers(0, len(counts) - 1))
        for u, v in draw(st.lists(pairs.filter(lambda pair: pair[0] != pair[1]), max_size=10)):
            kind = draw(
                st.sampled_from(["dense", "dense", "forbidden", "tie", "zero", "equal rows"])
            )
            shape = (counts[u], counts[v])
            if kind == "tie" and counts[u] == counts[v]:
                matrix = np.where(np.eye(counts[u], dtype=bool), 0.0, np.inf)
            elif kind == "zero":
                matrix = np.zeros(shape)
            elif kind == "equal rows":
                matrix = np.tile(array(number, 1, counts[v]), (counts[u], 1))
            else:
                matrix = array(rare_inf if kind == "forbidden" else number, *shape)
            edges.append(Edge(u, v, matrix))
    if not (draw(st.booleans()) if limited is None else limited):
        return Problem(costs, tuple(edges))
    unit = 1.0 if draw(st.booleans()) else 0.37
    usages: list[Usage] = []
    for _ in range(draw(st.integers(0, 7))):
        v, start, length = (
            draw(st.integers(0, len(counts) - 1)),
            draw(st.integers(0, 6)),
            draw(st.integers(1, 5)),
        )
        usages.append(
            Usage(v, start, start + length, unit * array(st.integers(0, 6).map(float), counts[v]))
        )
    return Problem(costs, tuple(edges), tuple(usages), float(draw(st.integers(0, 14))))


def chain_with_skips(
    nodes: int, strategies: int, period: int, seed: int, memory: bool = False
) -> Problem:
    """A training step in outline: repeated blocks, redistribution costs that are a metric, residual connections."""
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 3, (20, 3))
    metric = (points[:, None] != points[None]) @ np.array([1e-3, 3e-4, 5e-5])
    made = [rng.integers(0, 20, strategies) for _ in range(period)]
    wanted = [rng.integers(0, 20, (2, strategies)) for _ in range(period)]
    cost = [rng.choice([1e-4, 2e-4, 5e-4], strategies) for _ in range(period)]
    size = [rng.choice([1.0, 2.0, 4.0, 8.0], strategies) for _ in range(period)]
    shared: dict[tuple[int, int, int], np.ndarray] = {}
    edges: list[Edge] = []
    for v in range(1, nodes):
        for slot, u in enumerate((v - 1, v - 4)):
            if u >= 0 and (slot == 0 or v % 4 == 0):
                key = (u % period, v % period, slot)
                shared.setdefault(key, metric[np.ix_(made[key[0]], wanted[key[1]][slot])])
                edges.append(Edge(u, v, shared[key]))
    usages = (
        tuple(Usage(v, v, 2 * nodes - v, size[v % period]) for v in range(nodes)) if memory else ()
    )
    return Problem(tuple(cost[v % period] for v in range(nodes)), tuple(edges), usages)


def tangled(seed: int, nodes: int = 6, strategies: int = 3, limit: float | None = None) -> Problem:
    """What reductions leave: nearly all nodes tied to all others by costs without a pattern, some of them forbidden.

    `limit` says how far the memory limit lies between the least and the most that strategies take: 0 to 1.
    """
    rng = np.random.default_rng(seed)
    whole = seed % 2 == 0

    def drawn(*shape: int) -> np.ndarray:
        return rng.integers(0, 12, shape).astype(float) if whole else rng.random(shape)

    pairs = [(u, v) for v in range(nodes) for u in range(v) if rng.random() < 0.85]
    edges = [Edge(u, v, drawn(strategies, strategies)) for u, v in pairs]
    for edge in edges:
        if rng.random() < 0.3:
            edge.cost[rng.integers(strategies), rng.integers(strategies)] = np.inf
    costs = tuple(0.5 * drawn(strategies) for _ in range(nodes))
    if limit is None:
        return Problem(costs, tuple(edges))
    starts = rng.integers(0, 3, nodes).tolist()
    usages = tuple(
        Usage(v, start, start + 3, 4.0 * drawn(strategies)) for v, start in enumerate(starts)
    )
    least, most = (sum(float(take(use.size_bytes)) for use in usages) for take in (np.min, np.max))
    return Problem(costs, tuple(edges), usages, least + limit * (most - least))
