"""Shortest distances, all sources at once, against those of one path after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.redistribute.shortest import shortest_distances

COSTS = st.sampled_from([0.0, 1e-6, 0.1, 0.2, 0.3, 0.7, 1 / 3, 1e16])
"""Whose sums depend on their order, and 0."""


@st.composite
def graphs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges by state (starts, heads, costs), at most one between two states."""
    states = draw(st.integers(1, 7))
    pairs = st.tuples(st.integers(0, states - 1), st.integers(0, states - 1))
    edges = sorted(draw(st.dictionaries(pairs, COSTS, max_size=20)).items())
    tails = np.array([tail for (tail, _), _ in edges], dtype=np.int64)
    heads = np.array([head for (_, head), _ in edges], dtype=np.int64)
    return (
        np.searchsorted(tails, np.arange(states + 1)),
        heads,
        np.array([cost for _, cost in edges]),
    )


def slow(start: np.ndarray, head: np.ndarray, cost: np.ndarray, source: int) -> list[float]:
    """The least sum along any walk of fewer edges than there are states, each added up from the source on."""
    states = len(start) - 1
    least = [np.inf] * states
    ends = {source: 0.0}
    for _ in range(states):
        longer: dict[int, float] = {}
        for state, total in ends.items():
            least[state] = min(least[state], total)
            for edge in range(start[state], start[state + 1]):
                longer[head[edge]] = min(longer.get(head[edge], np.inf), total + cost[edge])
        ends = longer
    return least


@settings(deadline=None)  # the first call compiles
@given(graphs(), st.data())
def test_distances_are_the_least_sums_along_paths(
    graph: tuple[np.ndarray, ...], data: st.DataObject
) -> None:
    states = len(graph[0]) - 1
    sources = np.array(sorted(data.draw(st.sets(st.integers(0, states - 1)))), dtype=np.int64)
    wanted = np.array([slow(*graph, source) for source in sources.tolist()]).reshape(-1, states).T
    assert np.array_equal(shortest_distances(*graph, sources), wanted)


def test_what_falls_late_is_told_on() -> None:
    """The long way is the cheap one: every state falls once for each of those before it."""
    count = 8
    tail, head = np.triu_indices(count, 1)
    cost = (head - tail).astype(np.float64) ** 2
    start = np.searchsorted(tail, np.arange(count + 1))
    found = shortest_distances(start, head, cost, np.array([0, 3]))
    assert found[:, 0].tolist() == [*range(count)]
    assert found[:, 1].tolist() == [np.inf] * 3 + [*range(count - 3)]
