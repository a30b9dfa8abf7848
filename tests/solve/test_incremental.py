"""Standing: the optimum after any change of node costs, against every choice and against the solver."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autopar.solve.pipeline.incremental as standing_module
import autopar.solve.presolve.batched_elimination as chains_module
from autopar.solve import Edge, Infeasible, Problem, Solution, SolveOptions, Usage, solve, verify
from autopar.solve.pipeline.incremental import Standing, standing
from autopar.solve.trws.dual import Dual
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import optimum

OPTIONS = SolveOptions()


def stood(problem: Problem) -> Standing:
    found = standing(problem, OPTIONS)
    assert found is not None
    return found


def with_costs(problem: Problem, costs: dict[int, np.ndarray]) -> Problem:
    return replace(
        problem, node_costs=tuple(costs.get(v, cost) for v, cost in enumerate(problem.node_costs))
    )


def assert_optimal(base: Standing, problem: Problem) -> None:
    best = optimum(problem)
    if not np.isfinite(best):
        with pytest.raises(Infeasible):
            base.solve(problem)
        return
    found = base.solve(problem)
    assert found.objective == found.lower_bound == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert verify(problem, found).stated_by == ()


@settings(max_examples=150, deadline=None)
@given(problems(limited=False), st.data())
def test_after_any_change_against_all_choices(problem: Problem, data: st.DataObject) -> None:
    """Some nodes lose candidates, others get other costs; twice, from the same standing."""
    base = stood(problem)
    assert_optimal(base, problem)
    for _ in range(2):
        costs: dict[int, np.ndarray] = {}
        for v in data.draw(st.sets(st.integers(0, len(problem.counts) - 1), max_size=3)):
            mask = np.array(
                data.draw(
                    st.lists(st.booleans(), min_size=problem.counts[v], max_size=problem.counts[v])
                )
            )
            shift = float(data.draw(st.integers(0, 3)))
            costs[v] = np.where(mask, problem.node_costs[v] + shift, np.inf)
        assert_optimal(base, with_costs(problem, costs))


@pytest.mark.parametrize("seed", range(4))
def test_repeated_layers_against_the_solver(seed: int) -> None:
    problem = chain_with_skips(120, 5, 12, seed)
    base = stood(problem)
    for v in (0, 17, 60, 119):
        mask = np.ones(problem.counts[v], dtype=bool)
        mask[base.choice[v]] = False
        changed = with_costs(problem, {v: np.where(mask, problem.node_costs[v], np.inf)})
        found = base.solve(changed)
        assert (
            found.objective
            == found.lower_bound
            == pytest.approx(solve(changed).objective, rel=1e-9)
        )
        assert found.choice[v] != base.choice[v]


def test_equal_layers_share_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counting(chains_module.MinSum):
        def eliminate(self, shape, tables):
            made.append(1)
            return super().eliminate(shape, tables)

    monkeypatch.setattr(chains_module, "MinSum", Counting)
    counts: list[int] = []
    for layers in (10, 40):
        made.clear()
        stood(chain_with_skips(12 * layers, 4, 12, 0))
        counts.append(len(made))
    assert counts[1] < 2 * counts[0]


def test_what_needs_larger_tables_than_allowed_is_refused() -> None:
    rng = np.random.default_rng(0)
    costs = tuple(rng.random(4) for _ in range(6))
    edges = tuple(Edge(u, v, rng.random((4, 4))) for u in range(6) for v in range(u))
    problem = Problem(costs, edges)
    assert standing(problem, SolveOptions(max_table_entries=4**5)) is not None
    assert standing(problem, SolveOptions(max_table_entries=4**4)) is None
    assert standing(problem, SolveOptions(max_total_entries=4**5)) is None


def test_other_edges_or_a_limit_are_refused() -> None:
    problem = chain_with_skips(8, 3, 4, 0)
    base = stood(problem)
    for other in (
        replace(problem, edges=problem.edges[1:]),
        replace(problem, edges=(*problem.edges[1:], Edge(0, 5, np.zeros((3, 3))))),
        replace(problem, usages=(Usage(0, 0, 1, np.ones(3)),), usage_limit=2.0),
    ):
        with pytest.raises(ValueError, match="differs in more than the costs of nodes"):
            base.solve(other)


SMALL = SolveOptions(max_table_entries=25)
"""Tables of pairs of nodes of five strategies at most: what has more neighbours is left to messages."""


def wide_problem(seed: int, strategies: int = 5, nodes: int = 60) -> Problem:
    """Repeated blocks with skips of several lengths, so that nodes are left that have three neighbours."""
    base = chain_with_skips(nodes, strategies, 12, seed)
    points = np.random.default_rng(seed).integers(0, 3, strategies)
    metric = 1e-4 * np.abs(points[:, None] - points)
    more = tuple(Edge(v, v + 6, metric) for v in range(0, nodes - 6, 2))
    return replace(base, edges=(*base.edges, *more), periods=np.arange(nodes, dtype=np.intp) % 12)


def without(problem: Problem, v: int, strategy: int) -> Problem:
    mask = np.arange(problem.counts[v]) != strategy
    return with_costs(problem, {v: np.where(mask, problem.node_costs[v], np.inf)})


@pytest.mark.parametrize("seed", range(1, 7))
def test_what_elimination_leaves_is_solved_by_messages(seed: int) -> None:
    problem = wide_problem(seed)
    base = standing(problem, SMALL)
    assert base is not None
    assert len(base.chains.nodes)
    same = base.solve(problem)
    assert same is not None
    assert same.objective == pytest.approx(solve(problem).objective, rel=1e-9)
    proven = 0
    for v in (0, 1, 17, 30, 59, *base.joined.stay[base.chains.nodes[:4]].tolist()):
        changed = without(problem, v, same.choice[v])
        found = base.solve(changed)
        if found is not None:
            proven += 1
            assert (
                found.objective
                == found.lower_bound
                == pytest.approx(solve(changed).objective, rel=1e-9)
            )
            assert found.choice[v] != same.choice[v]
    assert proven >= 5


@settings(max_examples=150, deadline=None)
@given(problems(limited=False), st.integers(1, 9), st.data())
def test_whatever_is_left_to_messages_answers_are_right(
    problem: Problem, most: int, data: st.DataObject
) -> None:
    """There may be none; one that is given is the optimum, and infeasible is what has no finite choice."""
    try:
        base = standing(problem, SolveOptions(max_table_entries=most))
    except Infeasible:
        assert not np.isfinite(optimum(problem))
        return
    v = data.draw(st.integers(0, len(problem.counts) - 1))
    mask = np.array(
        data.draw(st.lists(st.booleans(), min_size=problem.counts[v], max_size=problem.counts[v]))
    )
    changed = with_costs(problem, {v: np.where(mask, problem.node_costs[v] + 1.0, np.inf)})
    for other in (problem, changed) if base is not None else ():
        best = optimum(other)
        try:
            found = base.solve(other)
        except Infeasible:
            assert not np.isfinite(best)
            continue
        assert found is None or found.objective == found.lower_bound == pytest.approx(
            best, rel=1e-9, abs=1e-12
        )


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """How often problems of so many nodes are swept."""
    found: dict[int, int] = {}
    original = Dual.sweep

    def sweep(self: Dual) -> None:
        count = len(self.problem.counts)
        found[count] = found.get(count, 0) + 1
        original(self)

    monkeypatch.setattr(Dual, "sweep", sweep)
    return found


def test_few_of_the_equal_layers_are_swept_first(
    swept: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweeps of all nodes are then as few, whatever the number of layers; nothing is lost."""
    problem = wide_problem(3, nodes=900)
    base = standing(problem, SMALL)
    assert base is not None
    few, whole = sorted(swept)
    assert few < whole / 3
    assert swept[whole] < swept[few]
    found = base.solve(problem)
    assert found is not None
    assert verify(problem, found).stated_by == ()
    monkeypatch.setattr(standing_module, "shortened", lambda *args: None)
    by_all = stood_by(problem, SMALL)
    assert found.objective == pytest.approx(by_all.objective, rel=1e-9)


def cliques(seed: int, blocks: int = 300, nodes: int = 4, strategies: int = 3) -> Problem:
    """Equal blocks, in which all nodes are joined, in a row: messages prove the optimum of some."""
    rng = np.random.default_rng(seed)
    inner = [(i, j, rng.random((strategies, strategies))) for i in range(nodes) for j in range(i)]
    outer = [rng.random((strategies, strategies)) for _ in range(nodes)]
    own = [rng.random(strategies) for _ in range(nodes)]
    first = range(0, blocks * nodes, nodes)
    edges = [Edge(at + i, at + j, cost) for at in first for i, j, cost in inner]
    edges += [
        Edge(at + i, at + nodes + i, cost) for at in first[:-1] for i, cost in enumerate(outer)
    ]
    return Problem(
        tuple(own * blocks), tuple(edges), periods=np.arange(blocks * nodes, dtype=np.intp) % nodes
    )


@pytest.mark.parametrize(
    ("seed", "is_proven"), [(1, False), (4, False), (7, False), (3, True), (5, True), (6, True)]
)
def test_all_are_swept_on_only_where_few_are_proven(
    seed: int, is_proven: bool, swept: dict[int, int]
) -> None:
    """What messages do not prove of few of the equal layers they do not prove of all: one sweep tells the bound."""
    assert (standing(cliques(seed), SMALL) is not None) == is_proven
    assert (swept[max(swept)] > 1) == is_proven


def stood_by(problem: Problem, options: SolveOptions) -> Solution:
    base = standing(problem, options)
    assert base is not None
    found = base.solve(problem)
    assert found is not None
    return found


def test_sweeps_start_from_the_messages_there_were(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = wide_problem(1)
    base = standing(problem, SMALL)
    assert base is not None
    bounds: list[float] = []
    original = Dual.sweep
    monkeypatch.setattr(
        Dual, "sweep", lambda self: (bounds.append(self.state().bound), original(self))[1]
    )
    node = int(base.joined.stay[base.chains.nodes[5]])
    changed, settled = without(problem, node, base.choice[node]), base.known.settled
    forgetful = replace(
        base, known=replace(base.known, settled=replace(settled, messages=0 * settled.messages))
    )
    assert base.solve(changed) is not None
    assert forgetful.solve(changed) is not None
    assert bounds[0] >= settled.bound * (1 - 1e-12)
    assert min(bounds) < 0.99 * bounds[0]  # where the other began


@pytest.mark.parametrize("bug", ["eliminated", "chosen"])
def test_planted_bugs_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables or choices that are left as they were are seen, by the bound or by the verifier."""
    problem = chain_with_skips(24, 4, 12, 1)
    base = stood(problem)
    before = np.array([base.choice[v] for v in base.joined.stay])
    stale = {"eliminated": lambda *args: base.known.eliminated, "chosen": lambda *args: before}
    mask = np.ones(4, dtype=bool)
    mask[base.choice[5]] = False
    changed = with_costs(problem, {5: np.where(mask, problem.node_costs[5], np.inf)})
    monkeypatch.setattr(standing_module, bug, stale[bug])
    with pytest.raises(ValueError, match="forbidden entry"):
        base.solve(changed)
