"""Every bound's witness is replayed on the problem and proves what is said, below the optimum; tampering is seen."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from autopar.solve import (
    Edge,
    Infeasible,
    InvalidSolution,
    Problem,
    Solution,
    SolveOptions,
    Usage,
    proven,
    solve,
    verify,
)
from autopar.solve.certificate.proof import (
    Bar,
    Cases,
    Dominate,
    Eliminate,
    Exceed,
    Exhaust,
    Fold,
    Follow,
    Forbid,
    Join,
    Look,
    Messages,
    Overflow,
    Pass,
    Price,
    Prices,
    Proof,
    Step,
    Unlimit,
)
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import choices, cost_of, optimum, peak_of
from tests.solve.paths import LAZY, PATHS, outcome


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("options", [*PATHS.values(), LAZY])
@settings(max_examples=120, deadline=None)
@given(problem=problems())
def test_every_witness_proves_its_bound(options: SolveOptions, problem: Problem) -> None:
    best = optimum(problem)
    solution = outcome(problem, options)
    if isinstance(solution, Infeasible) and solution.witness is not None:
        assert proven(problem, solution.witness).bound == np.inf
    if not isinstance(solution, Solution):
        return
    found = verify(problem, solution, search_work=1.0)
    assert found.bound <= best * (1 + 1e-9) + 1e-12
    assert found.stated_by == ()
    assert found.repeated in {(), ("CP-SAT",)}


FIXING = "fixing.fixed_point"
"""Without it neither windows are fixed nor frustrated cycles merged: what is left is for what follows."""


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("path", ["default", "core"])
def test_training_steps_are_proven_with_a_witness(path: str) -> None:
    problem = chain_with_skips(60, 12, period=20, seed=2, memory=True)
    free = solve(problem, options=PATHS[path])
    assert verify(problem, free).stated_by == ()
    limited = replace(problem, usage_limit=0.8 * free.peak)
    solution = solve(limited, options=PATHS[path])
    assert verify(limited, solution).bound >= solution.lower_bound * (1 - 1e-9)


def test_a_bound_that_only_cp_sat_proves_says_so() -> None:
    """All nodes are to differ: messages and prices prove little, and frustrated cycles, which would, are not merged."""
    rng = np.random.default_rng(0)
    different = np.where(np.eye(4, dtype=bool), 1.0, 0.0) + rng.random((4, 4))
    problem = Problem(
        (np.zeros(4),) * 5, tuple(Edge(u, v, different) for u in range(5) for v in range(u))
    )
    solution = solve(problem, options=SolveOptions(max_table_entries=1).without(FIXING))
    found = verify(problem, solution)
    assert solution.gap == 0
    assert found.stated_by == ("CP-SAT",)
    again = verify(problem, solution, search_work=10.0)
    assert (again.stated_by, again.repeated) == ((), ("CP-SAT",))
    assert again.bound == found.bound
    assert isinstance(solution.witness, tuple)
    unstated = tuple(
        replace(s, beyond=0.0) if isinstance(s, Exhaust) else s for s in solution.witness
    )
    with pytest.raises(InvalidSolution, match="its witness proves"):
        verify(problem, replace(solution, witness=unstated))


def test_a_solution_without_a_witness_is_refused() -> None:
    problem = chain_with_skips(10, 3, 10, 0)
    with pytest.raises(InvalidSolution, match="no witness"):
        verify(problem, replace(solve(problem), witness=None))


def test_solutions_are_equal_whatever_their_witness() -> None:
    problem = chain_with_skips(10, 3, 10, 0)
    assert solve(problem) == replace(solve(problem), witness=None)


# One step at a time: what it proves is below the optimum, whatever its numbers are ------------------------------------

INF = np.inf
PROBLEM = Problem(
    (np.array([1.0, 3.0, INF]), np.array([2.0, 0.5, 4.0]), np.array([0.0, 1.0])),
    (
        Edge(0, 1, np.array([[0.0, 3.0, 1.0], [0.0, 0.0, 2.0], [0.0, 0.0, 0.0]])),
        Edge(1, 2, np.array([[0.0, INF], [INF, 0.5], [0.0, INF]])),
    ),
    (Usage(0, 0, 2, np.array([4.0, 9.0, 1.0])), Usage(1, 1, 3, np.array([3.0, 2.0, 3.0]))),
    8.0,
)
BEST = optimum(PROBLEM)
EDGES = np.array([[0, 1], [1, 2]])
ZERO = Messages(EDGES, ((np.zeros(3), np.zeros(3)), (np.zeros(3), np.zeros(2))))
GOOD = Messages(
    EDGES, ((np.array([-1.0, -3.0, -9.0]), np.array([1.0, 3.0, 2.0])), (np.zeros(3), np.zeros(2)))
)
NO_PRICES = Prices(np.zeros(0, dtype=np.intp), np.zeros(0))
DEAR = Prices(np.array([1]), np.array([0.25]))
LEFT = Messages(np.array([[0, 1]]), (GOOD.to[0],))
FOLLOWS = np.array([0, 1, 0])


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.intp)


def test_the_problem_of_these_tests() -> None:
    assert BEST == 3.0
    assert (
        len(
            [
                c
                for c in choices(PROBLEM)
                if cost_of(PROBLEM, c) < INF and peak_of(PROBLEM, c) <= 8.0
            ]
        )
        > 1
    )


LAWFUL: dict[str, tuple[Proof, float]] = {
    "nothing": ((), 1.5),
    "forbid": ((Forbid({0: ids(0, 1)}), Unlimit(), Eliminate((0, 1, 2))), 3.0),
    "eliminate": ((Unlimit(), Eliminate((2, 0, 1))), 3.0),
    "eliminate under a limit": ((Eliminate((0, 2, 1)),), 3.0),
    "follow": ((Follow(((2, 1, FOLLOWS),)), Eliminate((0, 1))), 3.0),
    "follow, then renumbered": (
        (Eliminate((0,)), Follow(((1, 0, FOLLOWS),)), Eliminate((0,))),
        3.0,
    ),
    "fold": ((Fold(((2, 1),)), Eliminate((0, 1, 2))), 2.0 + 1.0),
    "dominate": ((Dominate({1: ids(2, 0).reshape(1, 2)}), Eliminate((0, 1, 2))), 3.0),
    "look": (
        (Look(ids(1)), Price(Prices(ids(0), np.array([0.25]))), Eliminate((0, 1, 2))),
        3.0 - 0.25,
    ),
    "price": ((Price(DEAR), Eliminate((0, 1, 2))), 2.75),
    "pass": ((Pass(ZERO),), 1.5),
    "pass a good one": ((Pass(GOOD),), 3.0),
    "exceed": ((Exceed({0: ids(0)}, NO_PRICES, GOOD), Unlimit(), Eliminate((0, 1, 2))), 3.0),
    "exceed after an elimination": (
        (Exceed({0: ids(0)}, NO_PRICES, LEFT, (2,)), Unlimit(), Eliminate((0, 1, 2))),
        3.0,
    ),
    "the best exceeds at prices, after an elimination": (
        (Exceed({0: ids(1, 2)}, DEAR, LEFT, (2,)), Eliminate((0, 1, 2))),
        3.0 - 0.25,
    ),
    "exhaust": ((Exhaust({}, NO_PRICES, ZERO, 1.5, "X"),), 3.0),
    "overflow": ((Overflow({0: ids(0, 2)}), Unlimit(), Eliminate((0, 1, 2))), 3.0),
    "cases": ((Cases(0, ((ids(0), (Eliminate((0, 1, 2)),)), (ids(1, 2), ()))),), 3.0),
    "cases that overlap": ((Cases(1, ((ids(0, 1), ()), (ids(2, 0, 1), (Pass(ZERO),)))),), 1.5),
    "cases that change nothing outside": (
        (Cases(0, ((ids(0), ()), (ids(1, 2), ()))), Eliminate((0, 1, 2))),
        3.0,
    ),
    "cases within cases": (
        (Cases(0, ((ids(0), (Cases(1, ((ids(0), ()), (ids(1, 2), ()))),)), (ids(1, 2), ()))),),
        1.0 + 0.5 + 1.0,
    ),
}


@pytest.mark.parametrize("name", LAWFUL)
def test_a_step_proves(name: str) -> None:
    proof, bound = LAWFUL[name]
    found = proven(PROBLEM, proof)
    assert found.bound == pytest.approx(bound, rel=1e-12)
    assert found.bound <= BEST
    assert found.stated_by == (("X",) if name == "exhaust" else ())


@pytest.mark.parametrize(
    ("beyond", "is_true"), [(1.5, True), (1.500001, False), (-0.5, True), (INF, False)]
)
def test_what_is_stated_is_searched_through_again(beyond: float, is_true: bool) -> None:
    found = proven(PROBLEM, (Exhaust({}, NO_PRICES, ZERO, beyond, "X"),), search_work=5.0)
    if beyond < 0:  # what was re-checked without it is more
        assert found.stated_by == found.repeated == ()
        return
    assert found.repeated == (("X",) if is_true else ())
    assert found.stated_by == (() if is_true else ("X",))


def test_nothing_is_left_to_search_through() -> None:
    """Two nodes that are to differ, and to be the same."""
    one = Edge(0, 1, np.array([[0.0, INF], [INF, 0.0]]))
    other = Edge(1, 2, np.array([[0.0, INF], [INF, 0.0]]))
    third = Edge(0, 2, np.array([[INF, 0.0], [0.0, INF]]))
    problem = Problem((np.zeros(2),) * 3, (one, other, third))
    none = Messages(np.zeros((0, 2), dtype=np.intp), ())
    found = proven(problem, (Exhaust({}, NO_PRICES, none, INF, "X"),), search_work=5.0)
    assert (found.bound, found.stated_by, found.repeated) == (INF, (), ("X",))


UNLAWFUL: dict[str, tuple[Proof, str]] = {
    "forbid what is possible": ((Forbid({0: ids(1, 2)}),), "arc consistency does not rule out"),
    "forbid by a mask": ((Forbid({0: np.array([True, True, False])}),), "not a list of indices"),
    "follow where both are possible": ((Follow(((0, 1, ids(0, 0, 0)),)),), "does not follow"),
    "follow to the wrong strategy": ((Follow(((2, 1, ids(0, 0, 0)),)),), "does not follow"),
    "follow a stranger": ((Follow(((2, 0, FOLLOWS),)),), r"Follow: \(0, 2\)"),
    "follow oneself": ((Follow(((1, 1, ids(0, 1, 2)),)),), "Follow"),
    "no such node": ((Eliminate((3,)),), "no node 3"),
    "no such node, from the end": ((Eliminate((-1,)),), "no node -1"),
    "eliminated twice": ((Eliminate((0, 0)),), "Eliminate"),
    "dominated by one that uses more": (
        (Dominate({0: ids(0, 1).reshape(1, 2)}),),
        "uses more memory at time",
    ),
    "dominated by itself": ((Dominate({1: ids(1, 1).reshape(1, 2)}),), "gone or none"),
    "dominated by itself, from the end": (
        (Dominate({1: ids(2, -1).reshape(1, 2)}),),
        "gone or none",
    ),
    "dominated in a circle": ((Dominate({1: ids(1, 2, 2, 1).reshape(2, 2)}),), "gone or none"),
    "negative price": ((Price(Prices(ids(1), np.array([-0.25]))),), "prices"),
    "price of no limit": ((Unlimit(), Price(DEAR)), "prices"),
    "times go back": ((Look(ids(2, 1)),), "ascending"),
    "messages of no edge": ((Pass(replace(GOOD, edges=np.array([[0, 2], [1, 2]]))),), "not there"),
    "messages too short": ((Pass(replace(GOOD, to=(GOOD.to[0], GOOD.to[0]))),), "another shape"),
    "messages for some": ((Pass(replace(GOOD, edges=EDGES[:1])),), "2 messages for 1 edges"),
    "messages that overflow": (
        (Pass(replace(GOOD, to=((np.array([1, -1, 0]) * 1e308,) * 2, GOOD.to[1]))),),
        "too large",
    ),
    "infinite messages": (
        (Pass(replace(GOOD, to=((np.array([INF, 0, 0]), np.zeros(3)), GOOD.to[1]))),),
        "too large",
    ),
    "overflow of what fits": ((Overflow({0: ids(1, 2)}),), "keeps within the limit"),
    "overflow of no limit": ((Unlimit(), Overflow({0: ids(0, 2)})), "not there"),
    "cases that leave one out": (
        (Cases(0, ((ids(0), ()), (ids(2), ()))),),
        r"strategies \[1\] are in no case",
    ),
    "no cases": ((Cases(0, ()),), "in no case"),
    "an unlawful step in a case": (
        (Cases(0, ((ids(0, 1, 2), (Overflow({0: ids(1, 2)}),)),)),),
        "Cases: step 0 .*Overflow",
    ),
    "cases by masks": ((Cases(0, ((np.array([True, True, True]), ()),)),), "not a list of indices"),
    "nobody's word": ((Exhaust({}, NO_PRICES, GOOD, float("nan"), "X"),), "not a number"),
}


@pytest.mark.parametrize("name", UNLAWFUL)
def test_an_unlawful_step_is_refused(name: str) -> None:
    proof, reason = UNLAWFUL[name]
    with pytest.raises(InvalidSolution, match=reason):
        proven(PROBLEM, proof)


HARMLESS: dict[str, Proof] = {
    "dominated by a dearer one": (
        Unlimit(),
        Dominate({1: ids(1, 2).reshape(1, 2)}),
        Eliminate((0, 1, 2)),
    ),
    "the best exceeds nothing": (
        Exceed({0: ids(1)}, NO_PRICES, GOOD),
        Unlimit(),
        Eliminate((0, 1, 2)),
    ),
    "no strategy left": (Exceed({0: ids()}, NO_PRICES, GOOD), Unlimit(), Eliminate((0, 1, 2))),
    "wild messages": (Pass(replace(GOOD, to=((np.full(3, 1e30), np.full(3, -1e30)), GOOD.to[1]))),),
    "wild prices": (
        Price(Prices(ids(0, 1, 2), np.array([1e30, 1e30, 1e30]))),
        Eliminate((0, 1, 2)),
    ),
    "wild messages after an elimination": (
        Exceed({0: ids(1)}, DEAR, replace(LEFT, to=((np.full(3, 1e30), np.full(3, -1e30)),)), (2,)),
        Eliminate((0, 1, 2)),
    ),
    "a case of no strategies": (Cases(0, ((ids(), ()), (ids(0, 1, 2), ()))),),
    "a fold that loses": (Fold(((0, 1),)), Eliminate((0, 1, 2))),
    "the best is not among what is searched": (Exhaust({0: ids(1)}, NO_PRICES, GOOD, INF, "X"),),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_wrong_numbers_prove_less_never_more(name: str) -> None:
    found = proven(PROBLEM, HARMLESS[name])
    assert not found.bound > BEST
    assert found.stated_by == ()


HUGE = Messages(np.array([[0, 1]]), ((np.array([1e16]), np.zeros(1)),))
HUGE_PRICE = Prices(ids(0), np.array([1e16]))
NO_MESSAGES = Messages(np.array([[0, 1]]), ((np.zeros(1), np.zeros(1)),))
ROUNDED: dict[str, Proof] = {
    "pass": (Pass(HUGE),),
    "price": (Price(HUGE_PRICE),),
    "exceed by messages": (Exceed({0: ids()}, NO_PRICES, HUGE),),
    "exceed by prices": (Exceed({0: ids()}, HUGE_PRICE, NO_MESSAGES),),
    "exhaust": (Exhaust({}, NO_PRICES, HUGE, 0.0, "X"),),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_what_rounding_adds_to_a_bound_is_taken_off(name: str) -> None:
    """The only choice costs 3, and 3 + 1e16 - 1e16 is 4."""
    use = Usage(0, 0, 1, np.array([1.0]))
    problem = Problem((np.array([3.0]), np.zeros(1)), (Edge(0, 1, np.zeros((1, 1))),), (use,), 1.0)
    assert 3.0 + 1e16 - 1e16 == 4.0
    assert proven(problem, ROUNDED[name]).bound <= 3.0


# Tampering with what the solver wrote ---------------------------------------------------------------------------------


FREE = chain_with_skips(40, 6, 40, 1, memory=True)
SPLIT = SolveOptions(max_table_entries=1, max_cp_sat_entries=0, anneal_passes=50)
CORE = replace(SPLIT, branch_entries=0)
SOLVED = {
    "without a limit": (FREE, SolveOptions()),
    "by prices": (replace(FREE, usages=FREE.usages[::2], usage_limit=35.0), CORE),
    "by windows": (replace(FREE, usages=FREE.usages[::2], usage_limit=34.5), CORE),
    "by cases": (replace(FREE, usages=FREE.usages[::2], usage_limit=37.5), SPLIT),
    "by CP-SAT": (replace(FREE, usages=FREE.usages[::2], usage_limit=42.0), SolveOptions()),
}


def tampered(step: Step) -> list[Step]:
    """The step with numbers changed such that it proves less, or something wrong."""
    match step:
        case Price(prices):
            return [
                Price(replace(prices, values=-prices.values)),
                Price(replace(prices, values=9 * prices.values)),
            ]
        case Pass(messages):
            return [
                Pass(
                    replace(messages, to=tuple((a + np.arange(len(a)), b) for a, b in messages.to))
                )
            ]
        case Eliminate(nodes):
            return [Eliminate(nodes[1:]), Eliminate((*nodes[1:], nodes[-1]))]
        case Follow(followers):
            return [Follow(tuple((v, u, np.roll(to_v, 1)) for v, u, to_v in followers))]
        case Exceed(keep):
            return [replace(step, keep={v: left[1:] for v, left in keep.items()})]
        case Bar(pairs):
            return [replace(step, pairs={ends: ~bits for ends, bits in pairs.items()})]
        case Join(pairs):
            return [Join(tuple((u, v, s[1:], t[1:]) for u, v, s, t in pairs))]
        case Forbid(keep):
            return [replace(step, keep={v: left[1:] for v, left in keep.items()})]
        case Overflow(keep):
            return [replace(step, keep={v: left[1:] for v, left in keep.items()})]
        case Cases(node, cases):
            (ids, proof), *others = cases
            return [
                Cases(node, tuple(others)),
                Cases(node, ((ids, ()), *others)),
                Cases(node, ((ids, proof[:-1]), *others)),
            ]
        case Dominate(pairs):
            return [Dominate({v: rows[:, ::-1] for v, rows in pairs.items()})]
        case _:
            return []


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("name", SOLVED)
def test_tampered_witnesses_are_seen(name: str) -> None:
    """A changed step is refused, or proves less than is said; or it is one that the bound does not hang on."""
    problem, options = SOLVED[name]
    solution = solve(problem, options=options)
    assert verify(problem, solution).stated_by == (("CP-SAT",) if name == "by CP-SAT" else ())
    proof, seen, best = solution.witness or (), 0, solve(problem).objective * (1 + 1e-9)
    for i, step in enumerate(proof):
        for other in tampered(step):
            changed = replace(solution, witness=(*proof[:i], other, *proof[i + 1 :]))
            try:
                assert verify(problem, changed).bound <= best
            except InvalidSolution:
                seen += 1
    assert seen >= 1
    with pytest.raises(InvalidSolution, match="its witness proves"):
        verify(problem, replace(solution, witness=proof[:-1]))


def test_a_higher_bound_than_the_witness_proves_is_seen() -> None:
    problem, options = SOLVED["by windows"]
    solution = solve(problem, options=options)
    assert solution.gap > 1e-6
    with pytest.raises(InvalidSolution, match="its witness proves"):
        verify(problem, replace(solution, lower_bound=solution.lower_bound * (1 + 1e-7)))


# What is trusted ------------------------------------------------------------------------------------------------------


TRUSTED = {
    *(f"certificate.{name}" for name in ("check", "tables", "conditions", "exhaust", "proof")),
    "cp_sat.library",
    "problem.problem",
}


@pytest.mark.parametrize("name", sorted(TRUSTED - {"problem.problem"}))
def test_the_check_shares_no_code_with_the_search(name: str) -> None:
    path = (
        Path(__file__).parents[2].joinpath("autopar", "solve", *name.split(".")).with_suffix(".py")
    )
    imported = {
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    ours = {
        module.removeprefix("autopar.solve.")
        for module in imported
        if module and module.startswith("autopar")
    }
    assert ours - {"autopar.errors"} <= TRUSTED


# a strategy that goes, and what is said to replace it
LATER = np.array([(s, 0) for s in range(2, 6)], dtype=np.intp)


@pytest.mark.parametrize(
    ("place", "planted"),
    [
        (
            "presolve.dead_end_elimination._undominated",
            lambda _possible, cost, _: (np.arange(len(cost)) < 2, LATER[: len(cost[2:])]),
        ),
        (
            "presolve.variable_elimination.least_to_two",
            lambda cost, a, b: (cost + a[:, None] + b).max(axis=2),
        ),
        (
            "presolve.functional_edges._Contraction.taken",
            lambda _self, cost, index, by_row: cost[index[::-1]] if by_row else cost[:, index],
        ),
    ],
)
def test_a_bug_of_the_search_is_seen(
    monkeypatch: pytest.MonkeyPatch, place: str, planted: object
) -> None:
    """Wrong dominance, elimination or contraction: the answer is worse than what is said of it."""
    ties = tuple(Edge(v, v + 40, np.where(np.eye(6, dtype=bool), 0.0, np.inf)) for v in range(40))
    free = chain_with_skips(40, 6, 40, 4)
    more = tuple(Edge(e.u + 40, e.v, 2 * e.cost) for e in free.edges)
    problem = Problem((*free.node_costs, *free.node_costs), (*free.edges, *ties, *more))
    best = solve(problem, options=CORE)
    verify(problem, best, search_work=5.0)
    monkeypatch.setattr(f"autopar.solve.{place}", planted)
    options = SolveOptions() if "least" in place else CORE
    # which would prove this before dominance is asked
    wrong = solve(problem, options=options.without(FIXING))
    assert wrong.lower_bound > best.objective * (1 + 1e-6)
    with pytest.raises(InvalidSolution):
        verify(problem, wrong)
