"""The memory limit as rows: one for each maximal live set that can exceed the limit, over disjoint segments of nodes.

for every row r:  sum over segments of row range low <= r < high of size[s_node]  <=  limit
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from autopar.solve.certificate.proof import Prices
from autopar.solve.problem.problem import Floats, Problem, Usage
from autopar.solve.problem.reduction import Bools, Ints, Reduction, unchanged, without_limit

Part = tuple[int, int, Floats]
"""The first row of a part of a node's bytes, the one after its last, and the bytes of every strategy."""
Pattern = tuple[tuple[int, int, int], ...]
"""Parts by where their ends are among all ends, and by the identities of their bytes."""

_ROUNDING = 1e-15  # of the largest sizes of all usages together


@dataclass(frozen=True, eq=False)
class Segment:
    """A node's bytes per strategy in the rows low <= r < high."""

    node: int
    low: int
    high: int
    size_bytes: Floats


@dataclass(frozen=True, eq=False)
class Rows:
    """All rows that matter, and the times they are. Segments of one node are disjoint and in order."""

    segments: tuple[Segment, ...]
    of_node: tuple[tuple[Segment, ...], ...]
    count: int
    limit: float
    times: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    @cached_property
    def _ends(self) -> tuple[Ints, Ints]:
        """The first row of every segment, and the one after its last."""
        low, high = ([getattr(part, end) for part in self.segments] for end in ("low", "high"))
        return np.array(low, dtype=np.intp), np.array(high, dtype=np.intp)

    @cached_property
    def _sizes(self) -> tuple[Ints, Ints, Floats]:
        """The node of every segment, where its sizes begin, and the sizes of all."""
        lengths = [len(part.size_bytes) for part in self.segments]
        begins = np.cumsum([0, *lengths], dtype=np.intp)[:-1]
        nodes = np.array([part.node for part in self.segments], dtype=np.intp)
        return (
            nodes,
            begins,
            np.concatenate([np.zeros(0), *(part.size_bytes for part in self.segments)]),
        )

    def sums(self, sizes: Floats) -> Floats:
        """The sum in every row when segment i has sizes[i]."""
        change = np.zeros(self.count + 1)
        np.add.at(change, self._ends[0], sizes)
        np.subtract.at(change, self._ends[1], sizes)
        return np.cumsum(change)[: self.count]

    def used(self, choice: Sequence[int]) -> Floats:
        """The bytes in use in every row."""
        nodes, begins, sizes = self._sizes
        return self.sums(sizes[begins + np.asarray(choice, dtype=np.intp)[nodes]])

    def at_times(self, prices: Floats) -> Prices:
        """Prices of rows as prices at times."""
        return Prices(self.times[prices > 0], prices[prices > 0])

    def by_row(self, prices: Prices) -> Floats:
        """Prices at times as prices of the rows that stand for these times."""
        result = np.zeros(self.count)
        _, at, of = np.intersect1d(self.times, prices.times, return_indices=True)
        result[at] = prices.values[of]
        return result

    def priced(self, prices: Floats, costs: Sequence[Floats]) -> list[Floats]:
        """The node costs with the prices of their bytes added."""
        sums = np.concatenate([[0.0], np.cumsum(prices)])
        result = list(costs)
        for segment in self.segments:
            price = sums[segment.high] - sums[segment.low]
            if price:
                result[segment.node] = result[segment.node] + price * segment.size_bytes
        return result


def memory_rows(problem: Problem) -> Rows:
    """The rows of a problem; none if it has no limit or the limit cannot bind."""
    count = len(problem.node_costs)
    if problem.usage_limit is None or not problem.usages:
        return Rows((), ((),) * count, 0, np.inf)

    times = row_times(problem)
    end = max(use.stop for use in problem.usages)
    row_of: list[int] = np.searchsorted(times, np.arange(end + 1)).tolist()
    every = {id(use.size_bytes): use.size_bytes for use in problem.usages}
    takes = {key for key, size in every.items() if size.any()}
    per_node: list[list[Part]] = [[] for _ in range(count)]
    for use in problem.usages:
        low = row_of[use.start]
        high = row_of[use.stop]
        if low < high and id(use.size_bytes) in takes:
            per_node[use.node].append((low, high, use.size_bytes))

    sums = dict[Pattern, list[Part]]()
    of_node = tuple(tuple(_disjoint(v, parts, sums)) for v, parts in enumerate(per_node))
    return Rows(
        tuple(s for segments in of_node for s in segments),
        of_node,
        len(times),
        problem.usage_limit,
        times,
    )


def row_times(problem: Problem) -> Ints:
    """The time that each row of `memory_rows` stands for."""
    return _maximal_times(problem, _may_exceed(problem))


def drop_slack(problem: Problem) -> Reduction:
    """Limit and usages go if the limit cannot bind, whatever is chosen."""
    if not problem.usages or _may_exceed(problem).any():
        return unchanged(problem)
    return without_limit(problem)


def _may_exceed(problem: Problem) -> Bools:
    """The times at which the limit can bind."""
    highest = _extreme_use(problem.usages, np.maximum)
    limit = np.inf if problem.usage_limit is None else problem.usage_limit
    return (highest > limit - 1e-9 * max(1.0, float(highest.max(initial=0.0)))) & (highest > 0)


def least_use(usages: Sequence[Usage]) -> float:
    """A lower bound of every choice's peak: each node takes its smallest size."""
    return float(least_uses(usages).max(initial=0.0))


def least_uses(usages: Sequence[Usage]) -> Floats:
    """The bytes in use at every time if each usage takes its smallest size: a lower bound of every choice's."""
    return _extreme_use(usages, np.minimum)


def rounding_of_uses(problem: Problem) -> float:
    """More than what sums of bytes over time are off by: they add what starts and subtract what stops."""
    return _ROUNDING * sum(float(use.size_bytes.max(initial=0.0)) for use in problem.usages)


def _extreme_use(usages: Sequence[Usage], extreme: np.ufunc) -> Floats:
    """The bytes in use at every time if every usage takes its extreme size: np.maximum or np.minimum of all."""
    if not usages:
        return np.zeros(0)

    starts, stops = (np.array([getattr(use, end) for use in usages]) for end in ("start", "stop"))
    lengths = np.array([len(use.size_bytes) for use in usages])
    every = np.concatenate([use.size_bytes for use in usages])
    sizes = extreme.reduceat(every, np.cumsum(lengths) - lengths)
    change = np.zeros(int(stops.max()) + 1)
    np.add.at(
        change, np.stack([starts, stops], axis=1).ravel(), np.stack([sizes, -sizes], axis=1).ravel()
    )
    return np.cumsum(change)[:-1]


def _maximal_times(problem: Problem, wanted: Bools) -> Ints:
    """The wanted times whose live set is in no other's: something started since the last one, and a stop is next.

    A time is wanted if its largest use can exceed the limit: whatever contains a wanted live set is wanted too.
    """
    starts = {use.start for use in problem.usages}
    stops = {use.stop for use in problem.usages}
    times: list[int] = []
    grew = False
    for t in range(len(wanted)):
        grew = grew or t in starts
        if grew and t + 1 in stops:
            times.append(t)
            grew = False
    return np.array([t for t in times if wanted[t]], dtype=np.intp)


def _apart(before: Part, after: Part) -> bool:
    """Whether a part ends where the next begins, or earlier, and they are not one: their sizes differ there."""
    if before[1] == after[0]:
        return before[2] is not after[2] and bool((before[2] != after[2]).any())
    return before[1] < after[0]


def _disjoint(node: int, parts: list[Part], sums: dict[Pattern, list[Part]]) -> list[Segment]:
    """The parts cut at each other's ends and added up where they overlap, equal neighbours joined.

    `sums` are those of patterns met before: equal layers have one.
    """
    if all(_apart(*both) for both in pairwise(parts)):
        return [Segment(node, *part) for part in parts]

    cuts = sorted({end for low, high, _ in parts for end in (low, high)})
    place = {cut: n for n, cut in enumerate(cuts)}
    pattern = tuple([(place[low], place[high], id(size)) for low, high, size in parts])
    if pattern not in sums:
        sums[pattern] = _summed(pattern, np.array([size for _, _, size in parts]))
    return [Segment(node, cuts[low], cuts[high], total) for low, high, total in sums[pattern]]


def _summed(pattern: Pattern, sizes: Floats) -> list[Part]:
    """The sums of sizes between the cuts of a pattern, equal neighbours joined, without those that are 0."""
    lows, highs = np.array([(low, high) for low, high, _ in pattern], dtype=np.intp).T
    change = np.zeros((int(highs.max()) + 1, sizes.shape[1]))
    np.add.at(change, lows, sizes)
    np.subtract.at(change, highs, sizes)
    totals = np.maximum(np.cumsum(change, axis=0), 0.0)
    begins = [0, *(i for i in range(1, len(change)) if change[i].any())]
    return [(i, j, totals[i]) for i, j in pairwise(begins) if totals[i].any()]
