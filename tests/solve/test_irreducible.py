"""Clashes against the slow truth: every set of groups and times, each by trying every choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, Problem, SolveOptions, Usage
from autopar.solve.conflict import irreducible as clash
from autopar.solve.conflict.irreducible import Clash, Requirement, clashing, thinned
from autopar.solve.cp_sat.bottleneck import Feasibility, feasible
from tests.solve.draw import problems
from tests.solve.oracle import choices, cost_of

OPTIONS = SolveOptions()
Subset = tuple[frozenset[int], frozenset[int]]  # groups and times


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Problem, tuple[Requirement, ...]]:
    """A problem with a limit, and up to four groups; often infeasible."""
    problem = draw(problems(limited=True, max_nodes=4))
    problem = replace(problem, usage_limit=float(draw(st.integers(0, 6))))
    groups: list[Requirement] = []
    for _ in range(draw(st.integers(0, 4))):
        nodes = draw(st.sets(st.integers(0, len(problem.counts) - 1), max_size=2))
        keep = {v: np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
                for v, n in enumerate(problem.counts) if v in nodes}  # fmt: skip
        tied = draw(st.lists(st.sampled_from(range(len(problem.counts))), max_size=2, unique=True))
        edges: tuple[Edge, ...] = ()
        if len(tied) == 2:
            u, v = tied
            rows, columns = problem.counts[u], problem.counts[v]
            edges = (
                Edge(u, v, np.where(np.arange(rows)[:, None] == np.arange(columns), 0.0, np.inf)),
            )
        groups.append(Requirement(keep, edges))
    return problem, tuple(groups)


def is_feasible(problem: Problem, groups: tuple[Requirement, ...], subset: Subset) -> bool:
    """Whether some choice of finite cost keeps to these groups, and within the limit at these times."""
    assert problem.usage_limit is not None
    for choice in choices(problem):
        kept = all(
            all(mask[choice[v]] for v, mask in groups[n].keep.items())
            and all(edge.cost[choice[edge.u], choice[edge.v]] < np.inf for edge in groups[n].edges)
            for n in subset[0]
        )
        used = (
            sum(
                use.size_bytes[choice[use.node]]
                for use in problem.usages
                if use.start <= t < use.stop
            )
            for t in subset[1]
        )
        if (
            kept
            and cost_of(problem, choice) < np.inf
            and all(size <= problem.usage_limit for size in used)
        ):
            return True
    return False


def everything(problem: Problem, groups: tuple[Requirement, ...]) -> Subset:
    end = max((use.stop for use in problem.usages), default=0)
    return frozenset(range(len(groups))), frozenset(range(end))


def smaller(subset: Subset, size: int) -> list[Subset]:
    """All parts of `subset` of `size` elements."""
    elements = [(True, n) for n in sorted(subset[0])] + [(False, t) for t in sorted(subset[1])]
    return [
        (
            frozenset(n for is_group, n in part if is_group),
            frozenset(t for is_group, t in part if not is_group),
        )
        for part in combinations(elements, size)
    ]


def check(problem: Problem, groups: tuple[Requirement, ...], found: Clash | None) -> None:
    """That what `found` claims is so."""
    every = everything(problem, groups)
    if found is None:
        assert is_feasible(problem, groups, every)
        return
    mine = frozenset(found.groups), frozenset(found.times)
    size = len(found.groups) + len(found.times)
    assert mine[0] <= every[0]
    assert mine[1] <= every[1]
    assert not is_feasible(problem, groups, mine)
    if found.is_minimal:
        assert all(
            is_feasible(problem, groups, part) for part in (smaller(mine, size - 1) if size else ())
        )
    if found.is_smallest:
        assert found.is_minimal
        assert all(
            is_feasible(problem, groups, part) for k in range(size) for part in smaller(every, k)
        )


@settings(max_examples=150, deadline=None)
@given(grouped())
def test_a_clash_is_infeasible_minimal_and_smallest(
    drawn: tuple[Problem, tuple[Requirement, ...]],
) -> None:
    """Such small problems leave nothing open: minimal and smallest are claimed always."""
    problem, groups = drawn
    found = clashing(problem, groups, OPTIONS)
    check(problem, groups, found)
    assert found is None or (found.is_minimal and found.is_smallest)
    assert found == clashing(problem, groups, OPTIONS)


def test_what_sums_leave_by_rounding_is_no_use() -> None:
    """0.37 + 1.48 - 1.48 - 0.37 is not 0; one of the strategies takes nothing at time 2 nevertheless."""
    sizes = [[0.37, 0.0], [1.48, 0.0], [0.0, 0.37]]
    usages = tuple(
        Usage(0, start, start + 1, np.array(sizes[n])) for n, start in enumerate((1, 0, 2))
    )
    problem = Problem((np.zeros(2),), (), usages, 0.0)
    found = clashing(problem, (), OPTIONS)
    assert found is not None
    assert (len(found.times), found.is_smallest) == (2, True)
    assert 2 in found.times


@settings(max_examples=100, deadline=None)
@given(grouped(), st.integers(0, 6), st.integers(0, 2**30))
def test_what_is_unknown_is_never_called_infeasible(
    drawn: tuple[Problem, tuple[Requirement, ...]], questions: int, seed: int
) -> None:
    """Few questions, of which a third get no answer: what is claimed nevertheless is so."""
    problem, groups = drawn
    random, asked = np.random.default_rng(seed), list[Problem]()

    def forgetful(part: Problem, options: SolveOptions) -> Feasibility:
        asked.append(part)
        found = feasible(part, options)
        return Feasibility(None) if random.random() < 1 / 3 else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clash, "feasible", forgetful)
        found = clashing(problem, groups, OPTIONS, questions)
    assert len(asked) <= max(3, questions)  # three are about all there is
    if found is not None:
        check(problem, groups, found)


@settings(max_examples=150, deadline=None)
@given(problems(limited=True, max_nodes=4))
def test_feasible_against_all_choices(problem: Problem) -> None:
    found = feasible(problem, OPTIONS)
    groups, times = everything(problem, ())
    assert found.is_feasible is not None
    assert found.is_feasible == is_feasible(problem, (), (groups, times))
    if found.choice is not None:
        assert cost_of(problem, found.choice) < np.inf
    else:
        assert not is_feasible(problem, (), (frozenset(), frozenset(found.times)))


def test_no_work_leaves_it_unknown() -> None:
    """Five nodes, all different, four strategies: no choice, but it takes search to know."""
    different = np.where(np.eye(4, dtype=bool), np.inf, 0.0)
    edges = tuple(Edge(u, v, different) for u in range(5) for v in range(u))
    problem = Problem((np.zeros(4),) * 5, edges)
    assert feasible(problem, OPTIONS).is_feasible is False
    lazy = SolveOptions(cp_sat_work=0.0)
    assert feasible(problem, lazy).is_feasible is None
    assert clashing(problem, (), lazy) is None
    assert clashing(problem, (), OPTIONS) == Clash((), (), True, True)


def test_two_groups_and_a_time() -> None:
    """Nodes of 1 or 3 bytes; the groups keep two of them large; from time 1 on all three live, within 6."""
    size, large = np.array([1.0, 3.0]), np.array([False, True])
    uses = tuple(Usage(v, start, 3, size) for v, start in ((0, 0), (1, 0), (2, 1)))
    groups = (Requirement({0: large}), Requirement({1: large}), Requirement({2: ~large}))
    problem = Problem((np.zeros(2),) * 3, (), uses, 6.0)
    assert clashing(problem, groups, OPTIONS) == Clash((0, 1), (2,), True, True)
    assert clashing(replace(problem, usage_limit=7.0), groups, OPTIONS) is None
    assert clashing(replace(problem, usage_limit=2.0), groups, OPTIONS) == Clash(
        (), (2,), True, True
    )


@pytest.mark.parametrize("met", [(), ((0, 0, 0), (1, 0, 0))])
def test_of_large_problems_a_time_that_is_overfull_whatever_is_chosen_is_told_unasked(
    monkeypatch: pytest.MonkeyPatch, met: tuple[tuple[int, ...], ...]
) -> None:
    monkeypatch.setattr(clash, "_MANY", 0)
    uses = tuple(Usage(v, start, 3, np.array([1.0, 3.0])) for v, start in ((0, 0), (1, 0), (2, 1)))
    problem = Problem((np.zeros(2),) * 3, (), uses, 2.0)
    asked: list[Problem] = []

    def counting(part: Problem, options: SolveOptions) -> Feasibility:
        asked.append(part)
        return feasible(part, options)

    monkeypatch.setattr(clash, "feasible", counting)
    assert clashing(problem, (), OPTIONS, met=met) == Clash((), (2,), True, True)
    assert len(asked) == (0 if met else 1)  # where no choice is known: whether there is one at all


def test_a_smaller_clash_than_the_minimal_one_is_found() -> None:
    """Three groups that contradict in a ring are minimal, but the fourth contradicts the first alone."""
    pair = [
        np.array([True, True, False]),
        np.array([False, True, True]),
        np.array([True, False, True]),
    ]
    groups = (
        *(Requirement({0: mask}) for mask in pair),
        Requirement({0: np.array([False, False, True])}),
    )
    problem = Problem((np.zeros(3),), ())
    assert clashing(problem, groups, OPTIONS) == Clash((0, 3), (), True, True)


@pytest.mark.parametrize("bug", ["limit", "groups", "smallest", "minimal"])
def test_planted_bugs_are_caught(bug: str) -> None:
    """A limit that is looser, groups that are not applied, and claims that are made without proof."""
    size, large = np.array([1.0, 3.0]), np.array([False, True])
    uses = tuple(Usage(v, 0, 3, size) for v in range(3))
    groups = tuple(Requirement({v: large}) for v in range(3))
    problem = Problem((np.zeros(2),) * 3, (), uses, 6.0)
    check(problem, groups, clashing(problem, groups, OPTIONS))
    wrong = {
        "limit": clashing(replace(problem, usage_limit=2.0), groups, OPTIONS),
        "groups": Clash((), (0,), True, True),
        "smallest": Clash((0, 1, 2), (0,), False, True),
        "minimal": Clash((0, 1, 2), (0,), True, False),
    }[bug]
    with pytest.raises(AssertionError):
        check(problem, groups, wrong)


@given(st.sets(st.integers(0, 63), max_size=4))
def test_what_clashes_is_left_after_few_questions(wanted: set[int]) -> None:
    """Of 64 elements, where all sets clash that hold some of them: these, in order; halves are asked about first."""
    asked = list[int]()

    def holds(part: Sequence[int]) -> bool:
        asked.append(len(part))
        return wanted <= set(part)

    assert thinned(range(64), holds) == tuple(sorted(wanted))
    assert len(asked) <= 1 + 2 * 6 * len(wanted)
