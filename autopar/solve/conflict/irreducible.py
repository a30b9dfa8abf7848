"""Irreducible infeasible set: the part of a problem that is infeasible by itself: groups of requirements, memory times.

An *element* is a group (what one requirement leaves of some nodes, and the edges it adds) or a time (the usage limit at
that time). A set of elements is feasible if some choice takes finite entries only, keeps to its groups, and keeps
within the limit at its times. Found is an infeasible set that is

    minimal:   without any one of its elements it is feasible            by deletion, in halves
    smallest:  no infeasible set has fewer elements                      by hitting sets

A choice that violates the elements V proves every set without V feasible: an infeasible set has an element of every V
that was met. So where no set of fewer elements hits them all, none is infeasible.

Reference: Junker 2004 (QuickXplain); Ignatiev et al. 2015 (smallest sets by hitting sets). Differs: times are taken up
as choices exceed them, and where the work limits leave a question open its element stays.

J. Chinneck, E. Dravnieks, "Locating minimal infeasible constraint sets in linear programs", ORSA Journal on Computing 3
(1991).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import TypeVar

import numpy as np

from autopar.solve.cp_sat.bottleneck import Feasibility, feasible, forbidding
from autopar.solve.problem.factored_matrix import at
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Edge, Floats, Problem, Usage, derived, usage_over_time
from autopar.solve.problem.reduction import Bools, Choice
from autopar.solve.problem.rows import least_uses, rounding_of_uses

Element = TypeVar("Element")
Elements = frozenset[int]
"""Groups by position, then times: time t is the number of groups plus t."""

_MOST_QUESTIONS = 40  # each is a solve of its own: an error is to come within seconds
_MOST_SETS = 20_000  # looked at for one that hits all: a second or so
_MANY = 5_000  # nodes: of more, the time that is told of is not solved for where one is overfull whatever is chosen


@dataclass(frozen=True, eq=False)
class Requirement:
    """One requirement: the strategies that it leaves, by node (all of the others), and edges that it adds."""

    keep: Mapping[int, Bools]
    edges: tuple[Edge, ...] = ()

    def allows(self, choice: Choice) -> bool:
        """Whether `choice` keeps to it."""
        kept = all(mask[choice[v]] for v, mask in self.keep.items())
        return kept and all(
            np.isfinite(at(edge.matrix, choice[edge.u], choice[edge.v])) for edge in self.edges
        )


@dataclass(frozen=True)
class Clash:
    """Groups (by position) and memory times that no choice satisfies together: proven.

    `is_minimal`: proven that without any one of them the others can be satisfied. `is_smallest`: proven that no
    infeasible set has fewer elements. Both may hold without being proven.
    """

    groups: tuple[int, ...]
    times: tuple[int, ...]
    is_minimal: bool
    is_smallest: bool


def clashing(
    problem: Problem,
    groups: Sequence[Requirement],
    options: SolveOptions,
    most_questions: int = _MOST_QUESTIONS,
    met: Iterable[Choice] = (),
) -> Clash | None:
    """A clash of `problem` under `groups`; None if they are feasible together, or that is not known.

    The same for the same arguments, always. Costs are looked at only for whether they are finite.

    Args:
      problem: its limit, if any, is soft at every time; its infinite entries are not.
      groups: what may be to blame besides.
      options: limits on the work of each question.
      most_questions: how many sets are asked about by solving, at most.
      met: choices without forbidden entries that are known already: what they satisfy is not asked about.
    """
    oracle = _Oracle(problem, groups, options, most_questions)
    for choice in met:
        oracle.learn(range(len(choice)), choice)

    found = _enough(oracle)
    if found is None:
        return None

    found = _thinned(oracle, found)
    is_smallest = False
    while (smaller := _not_refuted(oracle, len(found))) is not None:
        if not smaller:
            is_smallest = True
            break
        answer = oracle.ask(smaller)
        if answer is None:
            break
        found = _thinned(oracle, smaller) if answer is False else found

    is_minimal = is_smallest or all(oracle.ask(found - {element}) for element in sorted(found))
    return Clash(*oracle.told_apart(found), is_minimal, is_smallest)


def _enough(oracle: _Oracle) -> Elements | None:
    """An infeasible set of few times: without groups if there is one, else with all; None if none is known."""
    nothing = frozenset[int]()
    if oracle.ask(nothing) is False:
        return nothing
    if len(oracle.problem.node_costs) > _MANY and (time := oracle.overfull_time()) is not None:
        return oracle.of_times((time,))
    for groups in dict.fromkeys((nothing, oracle.every_group)):
        found = oracle.solved(groups, None)
        if found.is_feasible is False:
            return groups | oracle.of_times(found.times)
    return None


def _thinned(oracle: _Oracle, elements: Elements) -> Elements:
    """What is left of an infeasible set after every part has gone without which it is proven infeasible still."""
    groups = elements & oracle.every_group
    times = elements - oracle.every_group
    groups = frozenset(thinned(sorted(groups), lambda part: oracle.ask(times.union(part)) is False))
    return groups.union(
        thinned(sorted(times), lambda part: oracle.ask(groups.union(part)) is False)
    )


def thinned(
    elements: Sequence[Element], clash: Callable[[Sequence[Element]], bool]
) -> tuple[Element, ...]:
    """Those of elements that clash which are left after every part has gone without which the rest clash still.

    Asked about in halves. What is left is minimal if to clash is what all sets do that hold one that does.
    """
    kept = list(elements)

    def thin(block: Sequence[Element]) -> None:
        rest = [element for element in kept if element not in block]
        if clash(rest):
            kept[:] = rest
        elif len(block) > 1:
            thin(block[: len(block) // 2])
            thin(block[len(block) // 2 :])

    if kept:
        thin(elements)

    return tuple(kept)


def _not_refuted(oracle: _Oracle, size: int) -> Elements | None:
    """Fewer than `size` elements that no choice met so far satisfies: of the fewest.

    Empty if there are none, whatever their number of elements; None if that would take too long to say. Elements that
    the same choices violate, or fewer, are looked at once.
    """
    if size == 0:
        return frozenset()
    if not oracle.violated:
        return None

    masks: dict[int, int] = {}
    for element in sorted(frozenset[int]().union(*oracle.violated), key=oracle.promise):
        mask = sum(1 << n for n, elements in enumerate(oracle.violated) if element in elements)
        masks.setdefault(mask, element)

    largest = [mask for mask in masks if not any(mask | other == other != mask for other in masks)]
    if sum(comb(len(largest), k) for k in range(1, size)) > _MOST_SETS:
        return None

    for k in range(1, size):
        for chosen in combinations(largest, k):
            if all(any(mask >> n & 1 for mask in chosen) for n in range(len(oracle.violated))):
                return frozenset(masks[mask] for mask in chosen)

    return frozenset()


class _Oracle:
    """Is a set of elements feasible? What was learnt by one question answers others.

    `violated` holds, for every choice met, the elements that it violates.
    """

    def __init__(
        self,
        problem: Problem,
        groups: Sequence[Requirement],
        options: SolveOptions,
        most_questions: int,
    ) -> None:
        self.problem = problem
        self.groups = groups
        self.options = options
        self.bare = forbidding(problem)
        self.left = most_questions
        self.every_group: Elements = frozenset(range(len(groups)))
        self.least: Floats = least_uses(problem.usages)
        self.violated: list[Elements] = []
        self._refuted: list[Elements] = []
        self._open: set[Elements] = set()
        self._any: Choice | None = None
        self._near = _neighbours(self.bare)

    def of_times(self, times: Iterable[int]) -> Elements:
        """The elements that memory times are."""
        return frozenset(len(self.groups) + time for time in times)

    def told_apart(self, elements: Elements) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The groups and the times that elements are, in order."""
        groups = sorted(elements & self.every_group)
        return tuple(groups), tuple(
            element - len(self.groups) for element in sorted(elements - self.every_group)
        )

    def promise(self, element: int) -> tuple[float, int]:
        """Sorts groups first, then times by how much is in use at least, the most first."""
        time = element - len(self.groups)
        return (-np.inf if time < 0 else -float(self.least[time])), element

    def overfull_time(self) -> int | None:
        """Of the times at which even the least bytes exceed the limit, which is infeasible by itself, one to tell of.

        The one at which the choice that was learnt last uses the most.
        """
        limit = np.inf if self.problem.usage_limit is None else self.problem.usage_limit
        overfull = np.flatnonzero(self.least > limit + rounding_of_uses(self.problem))
        if not len(overfull) or self._any is None:
            return None
        used = usage_over_time(self.problem, self._any)[overfull]
        time = int(overfull[np.flatnonzero(used == used.max())[-1]])
        self._refuted.append(self.of_times((time,)))
        return time

    def ask(self, elements: Elements) -> bool | None:
        """Whether a choice satisfies them all; None if that is not known within the work that is left."""
        if any(not elements & violated for violated in self.violated):
            return True
        if any(refuted <= elements for refuted in self._refuted):
            return False
        if elements in self._open or self.left <= 0:
            return None
        groups, times = self.told_apart(elements)
        return self.solved(frozenset(groups), times).is_feasible

    def solved(self, groups: Elements, times: Sequence[int] | None) -> Feasibility:
        """Asks by solving: under groups and the limit at some times, or at all (None)."""
        self.left -= 1
        part, nodes = self._part(sorted(groups), times)
        found = feasible(part, self.options)
        if found.choice is not None:
            self.learn(nodes, found.choice)
        elif found.is_feasible is False:
            self._refuted.append(groups | self.of_times(found.times if times is None else times))
        elif times is not None:
            self._open.add(groups | self.of_times(times))
        return found

    def learn(self, nodes: Sequence[int], choice: Choice) -> None:
        """Takes up what a choice for some nodes violates, where the others keep to one that was met."""
        whole = list(self._any or choice)
        for v, s in zip(nodes, choice, strict=True):
            whole[v] = s
        self._any = tuple(whole)
        broken = (n for n, group in enumerate(self.groups) if not group.allows(self._any))
        limit = np.inf if self.problem.usage_limit is None else self.problem.usage_limit
        used = usage_over_time(self.problem, self._any)
        exceeded = np.flatnonzero(used > limit + rounding_of_uses(self.problem)).tolist()
        self.violated.append(frozenset(broken) | self.of_times(exceeded))

    def _part(
        self, groups: Sequence[int], times: Sequence[int] | None
    ) -> tuple[Problem, list[int]]:
        """The problem of one question, and its nodes: those that usages and groups concern, and all tied to these.

        The others keep to a choice that was met; the first question, which has no elements, is about all nodes.
        """
        bare = self.bare
        usages = bare.usages if times is None else tuple(_at_times(bare.usages, times))
        costs = list(bare.node_costs)
        added = list[Edge]()
        concerned = {use.node for use in usages}
        for group in (self.groups[n] for n in groups):
            for v, mask in group.keep.items():
                costs[v] = np.where(mask, costs[v], np.inf)
            added += group.edges
            concerned |= group.keep.keys() | {
                end for edge in group.edges for end in (edge.u, edge.v)
            }

        nodes = (
            list(range(len(costs)))
            if self._any is None
            else sorted(_reached(concerned, self._near))
        )
        new = {v: n for n, v in enumerate(nodes)}
        part = derived(
            tuple(costs[v] for v in nodes),
            tuple(Edge(new[e.u], new[e.v], e.matrix) for e in (*bare.edges, *added) if e.u in new),
            tuple(Usage(new[use.node], use.start, use.stop, use.size_bytes) for use in usages),
            bare.usage_limit,
        )
        return part, nodes


def _at_times(usages: Iterable[Usage], times: Sequence[int]) -> Iterable[Usage]:
    """The usages as the n-th of `times` sees them at time n."""
    for use in usages:
        first, last = np.searchsorted(times, (use.start, use.stop)).tolist()
        if first < last:
            yield Usage(use.node, first, last, use.size_bytes)


def _neighbours(problem: Problem) -> list[list[int]]:
    near: list[list[int]] = [[] for _ in problem.node_costs]
    for edge in problem.edges:
        near[edge.u].append(edge.v)
        near[edge.v].append(edge.u)
    return near


def _reached(nodes: Iterable[int], near: Sequence[Sequence[int]]) -> set[int]:
    """The nodes, and all that are connected with them."""
    reached = set(nodes)
    waiting = list(nodes)
    while waiting:
        fresh = [u for u in near[waiting.pop()] if u not in reached]
        reached.update(fresh)
        waiting += fresh
    return reached
