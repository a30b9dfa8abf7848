"""Instances of the IOPDDL contest: read, as the solver wants them, and evaluated in the file's own numbers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autopar.solve import Edge, Problem, Usage

FORBIDDEN = 1e18


def read(path: Path) -> dict[str, Any]:
    """The instance in a file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        return json.load(file)["problem"]


def as_problem(instance: dict[str, Any]) -> Problem:
    """The instance as the solver wants it: forbidden entries are infinite, equal matrices one object."""
    nodes, known = instance["nodes"], dict[tuple[int, bytes], np.ndarray]()
    costs = tuple(_costs(cost) for cost in nodes["costs"])

    def edge(ends: list[int], cost: list[float]) -> Edge:
        flat = _costs(cost)
        u, v = ends
        key = (len(costs[u]), flat.tobytes())
        if key not in known:
            known[key] = flat.reshape(len(costs[u]), len(costs[v]))
        return Edge(u, v, known[key])

    spans = zip(nodes["intervals"], nodes["usages"], strict=True)
    return Problem(
        costs,
        tuple(map(edge, instance["edges"]["nodes"], instance["edges"]["costs"])),
        tuple(
            Usage(v, low, high, np.array(sizes, dtype=np.float64))
            for v, ((low, high), sizes) in enumerate(spans)
            if low < high
        ),
        instance["usage_limit"],
    )


def _costs(values: list[float]) -> np.ndarray:
    costs = np.array(values, dtype=np.float64)
    costs[costs >= FORBIDDEN] = np.inf
    return costs


def evaluate(instance: dict[str, Any], choice: Sequence[int]) -> int:
    """The cost of a choice in the file's own numbers.

    Raises:
      ValueError: it takes a forbidden entry, or exceeds the limit at some time.
    """
    nodes, edges, limit = instance["nodes"], instance["edges"], instance["usage_limit"]
    taken = [costs[s] for costs, s in zip(nodes["costs"], choice, strict=True)]
    taken += [
        costs[choice[u] * len(nodes["costs"][v]) + choice[v]]
        for (u, v), costs in zip(edges["nodes"], edges["costs"], strict=True)
    ]
    if max(taken) >= FORBIDDEN:
        raise ValueError(f"{instance['name']}: the choice takes a forbidden entry")
    change: dict[int, int] = {}
    for (low, high), sizes, s in zip(nodes["intervals"], nodes["usages"], choice, strict=True):
        if low < high:
            change[low] = change.get(low, 0) + sizes[s]
            change[high] = change.get(high, 0) - sizes[s]
    used = 0
    for time in sorted(change):
        used += change[time]
        if used > limit:
            raise ValueError(
                f"{instance['name']}: {used} bytes at time {time}, the limit is {limit}"
            )
    return sum(taken)
