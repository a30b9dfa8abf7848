"""Equal layers solved once and added up: the optimum, with a proof that holds; tampering is seen."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, InvalidSolution, Problem, SolveOptions, proven, solve, verify
from autopar.solve.certificate.proof import Join, Piece, Pieces
from autopar.solve.periodic import layered as layered_module
from autopar.solve.periodic import part_tables as within_module
from autopar.solve.periodic.few_periods import Few, few_of
from autopar.solve.periodic.layered import by_layers
from autopar.solve.periodic.part_tables import _order, labels
from autopar.solve.pipeline import closing as closing_module
from autopar.solve.pipeline import messages as messages_module
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.problem import objective
from autopar.solve.problem.reduction import unchanged
from autopar.solve.trws.ascent import Answer, Ascent, is_closed
from autopar.solve.trws.dual import Certificate
from tests.solve.draw import problems
from tests.solve.test_tile import repeating

OPTIONS = SolveOptions(max_table_entries=1, max_elimination_work=1.0)


def few(problem: Problem) -> Few | None:
    """Few of the layers, their optimum known by elimination."""

    def search(ascent: Ascent) -> Answer:
        ascent.sweeps(np.inf, Best(ascent.problem, None, None))
        solution = solve(ascent.problem)
        return Answer(solution.choice, solution.objective, solution.lower_bound)

    return few_of(Ascent(problem, OPTIONS), lambda short: Ascent(short, OPTIONS), search)


def added_up(problem: Problem) -> Answer | None:
    found = few(problem)
    return None if found is None else by_layers(found, found.tiled(), OPTIONS, Best(problem, None, None))


@settings(max_examples=60, deadline=None)
@given(problem=repeating(most_blocks=30))
def test_layers_add_up_to_the_optimum(problem: Problem) -> None:
    answer = added_up(problem)
    if answer is None:
        return
    best = solve(problem).objective
    assert answer.bound <= best + 1e-9
    proof = proven(problem, answer.proof)
    assert not proof.stated_by
    assert abs(proof.bound - answer.bound) <= 1e-9 * max(1.0, abs(best))
    if answer.choice is not None:
        assert answer.objective == pytest.approx(objective(problem, answer.choice))
        assert answer.objective >= best - 1e-9


@settings(max_examples=40, deadline=None)
@given(problem=repeating(most_blocks=30), seed=st.integers(0, 1000))
def test_a_poor_choice_to_begin_with_costs_time_only(problem: Problem, seed: int) -> None:
    found = few(problem)
    if found is None:
        return
    rng = np.random.default_rng(seed)
    choice = tuple(int(rng.integers(n)) for n in problem.counts)
    start = Answer(choice, objective(problem, choice), -np.inf)
    answer, best = by_layers(found, start, OPTIONS, Best(problem, None, None)), solve(problem).objective
    if answer is not None:
        assert answer.bound <= best + 1e-9
        assert proven(problem, answer.proof).bound >= answer.bound - 1e-9 * max(1.0, abs(best))
        assert min(answer.objective, start.objective) >= best - 1e-9


@settings(max_examples=40, deadline=None)
@given(problem=repeating(most_blocks=30))
def test_no_choice_is_needed_to_begin_with(problem: Problem) -> None:
    """Windows are guessed then; what that gives is no better than the optimum, and proven."""
    found = few(problem)
    if found is None:
        return
    watch = Best(problem, None, None)
    answer, best = by_layers(found, Answer(None, np.inf, -np.inf), OPTIONS, watch), solve(problem).objective
    if answer is not None:
        assert answer.bound <= best + 1e-9 <= answer.objective + 2e-9
        assert proven(problem, answer.proof).bound >= answer.bound - 1e-9 * max(1.0, abs(best))


def cliques(layers: int, *, unlike: float = 0.0) -> Problem:
    """A chain of cliques, each joined to the next by one edge: messages prove less than the optimum."""
    rng, size = np.random.default_rng(3), 5
    costs, steps, link = 0.1 * rng.random((size, 2)), 0.1 * rng.random((size, size, 2, 2)), 0.1 * rng.random((2, 2))
    steps += np.eye(2)
    pairs = [(i, j, steps[i, j].copy()) for i in range(size) for j in range(i)]
    nodes, edges = list[np.ndarray](), list[Edge]()
    own = list(map(np.ascontiguousarray, costs))
    for layer in range(layers):
        first = size * layer
        nodes += own
        edges += [Edge(first + i, first + j, cost) for i, j, cost in pairs]
        edges += [Edge(first, first - 2, link)] if layer else []
    if unlike:
        edges[-1] = replace(edges[-1], matrix=edges[-1].cost - unlike)
        nodes[size * layers // 2] = own[size * layers // 2 % size] - unlike
    return Problem(
        (np.array([0.0, 0.3]), *nodes),
        (*(Edge(e.u + 1, e.v + 1, e.cost) for e in edges), Edge(0, 1, rng.random((2, 2)))),
    )


@pytest.mark.parametrize("layers", [30, 60])
def test_what_messages_do_not_prove_is_proven(layers: int) -> None:
    """By few of the layers, and by pieces: without them the same messages leave a gap."""
    problem, best = cliques(layers), solve(cliques(layers))
    answer = added_up(problem)
    assert answer is not None
    assert answer.objective == pytest.approx(best.objective, abs=1e-9)
    assert answer.bound == pytest.approx(best.objective, abs=1e-9)
    _, certificate = Ascent(problem, OPTIONS).sweeps(np.inf, Best(problem, None, None))
    assert certificate.bound < best.objective - 1e-3
    assert any(isinstance(step, Pieces) for step in answer.proof)
    assert proven(problem, answer.proof).bound == pytest.approx(best.objective, abs=1e-9)


def test_windows_that_are_guessed_find_the_optimum() -> None:
    problem = cliques(40)
    found, watch = few(problem), Best(problem, None, None)
    assert found is not None
    answer = by_layers(found, Answer(None, np.inf, -np.inf), OPTIONS, watch)
    assert answer is not None
    best = solve(problem).objective
    assert (answer.objective, answer.bound) == (pytest.approx(best, abs=1e-9), pytest.approx(best, abs=1e-9))


def test_few_are_swept_on_where_guessed_windows_find_a_choice_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """And added up about that choice, before any search of few."""
    problem, swept = cliques(40), list[float]()

    def open_at_first(few: Few, *args: Any) -> Answer | None:
        found = by_layers(few, *args)
        swept.append(few.ascent.held.bound)
        return found if found is None or len(swept) > 1 else replace(found, bound=found.bound - 1.0)

    def never(*_: object) -> None:
        pytest.fail("few of the layers were searched")

    monkeypatch.setattr(messages_module, "_SOME_SWEEPS", 1)
    monkeypatch.setattr(messages_module, "by_layers", open_at_first)
    monkeypatch.setattr(messages_module, "closing", never)
    solution = solve(problem, options=replace(OPTIONS, max_rounds=0))
    assert len(swept) == 2
    assert swept[1] >= swept[0]
    assert solution.gap == 0
    verify(problem, solution)


def test_nothing_is_guessed_where_some_sweeps_more_nearly_prove_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are added up about the choice of few, tiled."""

    def never(*_: object) -> None:
        pytest.fail("windows were guessed")

    monkeypatch.setattr(layered_module, "_guessed", never)
    monkeypatch.setattr(messages_module, "_NEARLY", 1.0)
    problem = cliques(40)
    solution = solve(problem, options=replace(OPTIONS, max_rounds=0))
    assert solution.gap == 0
    verify(problem, solution)


def test_layers_that_differ_by_rounding_lose_as_much() -> None:
    problem = cliques(40, unlike=2e-9)
    answer, best = added_up(problem), solve(problem).objective
    assert answer is not None
    assert best - 1e-7 <= answer.bound <= best + 1e-11
    assert answer.bound - 1e-12 <= proven(problem, answer.proof).bound <= best + 1e-11


def pieces_with(answer: Answer, number: int, **changes: object) -> tuple[object, ...]:
    """The proof with one of its pieces changed."""
    at = next(i for i, step in enumerate(answer.proof) if isinstance(step, Pieces))
    step = answer.proof[at]
    assert isinstance(step, Pieces)
    piece = replace(step.pieces[number], **changes)
    pieces = (*step.pieces[:number], piece, *step.pieces[number + 1 :])
    return (*answer.proof[:at], Pieces(pieces), *answer.proof[at + 1 :])


def changed(piece: Piece) -> list[dict[str, object]]:
    """What a piece must not be."""
    return [
        {"edges": np.concatenate([piece.edges, piece.edges[:1]])},
        {"edges": piece.edges[1:]},
        {"kept": piece.kept[1:]},
        {"own": piece.own + 1},
        {"nodes": piece.nodes[::-1].copy()},
        {"nodes": np.concatenate([piece.nodes[:1], piece.nodes[:1], piece.nodes[2:]])},
        {"like": piece.like + 2},
        {"like": 0},
    ]


@pytest.mark.parametrize("number", [1, 3])
def test_tampered_pieces_are_seen_or_prove_no_more(number: int) -> None:
    problem = cliques(30)
    answer, best = added_up(problem), solve(problem).objective
    assert answer is not None
    step = next(step for step in answer.proof if isinstance(step, Pieces))
    refused = 0
    for changes in changed(step.pieces[number]):
        try:
            bound = proven(problem, pieces_with(answer, number, **changes)).bound
        except InvalidSolution:
            refused += 1
            continue
        assert bound <= best + 1e-9
    assert refused >= 6


def test_a_piece_that_is_cheaper_than_said_is_seen() -> None:
    """The proof of one problem, on another whose layers cost less in one place."""
    answer = added_up(cliques(30))
    assert answer is not None
    problem = cliques(30)
    for v in (20, 70, 120):
        nodes = list(problem.node_costs)
        nodes[v] = nodes[v] - 0.5
        cheaper = replace(problem, node_costs=tuple(nodes))
        assert proven(cheaper, answer.proof).bound <= solve(cheaper).objective + 1e-9


def test_training_steps_end_with_it() -> None:
    """`solve` adds layers up where messages alone do not prove few of them, and says so in its witness."""
    problem = cliques(60)
    solution = solve(problem, options=SolveOptions(max_total_entries=600))
    assert solution.gap == 0
    assert solution.objective == pytest.approx(solve(problem).objective)
    assert solution.witness is not None
    assert any(isinstance(step, Pieces) for step in solution.witness)
    assert is_closed(proven(problem, solution.witness).bound, solution.objective, 1e-9)


@pytest.mark.parametrize("less", [1e-6, 1e-4, 1e-3])
def test_what_lies_beyond_the_windows_caps_the_bound(less: float) -> None:
    """Where all windows end below the optimum, what they hold proves no more than where they end."""
    problem, best = cliques(30), solve(cliques(30))
    found = few(problem)
    assert found is not None
    start = Answer(best.choice, best.objective - less, -np.inf)
    answer = by_layers(found, start, OPTIONS, Best(problem, None, None))
    assert answer is not None
    assert best.objective - 2 * less <= answer.bound <= best.objective - less / 2
    assert proven(problem, answer.proof).bound <= best.objective + 1e-9


@settings(max_examples=60, deadline=None)
@given(problem=problems(limited=False), data=st.data())
def test_the_order_takes_the_smallest_table_next(problem: Problem, data: st.DataObject) -> None:
    """All nodes without labels, each leaving the smallest table of those that are still there."""
    kept = data.draw(st.lists(st.integers(0, len(problem.counts) - 1), unique=True))
    labelled = replace(problem, usages=labels(problem, kept), usage_limit=0.0)
    order = _order(labelled)
    assert order is not None
    assert sorted(order) == [v for v in range(len(problem.counts)) if v not in kept]
    near = [{e.u + e.v - v for e in problem.edges if v in (e.u, e.v)} for v in range(len(problem.counts))]
    left = set(order)
    for v in order:
        size = {u: np.prod([problem.counts[w] for w in near[u]]) for u in left}
        assert size[v] == min(size.values())
        left.remove(v)
        for u in near[v]:
            near[u] = (near[u] | near[v]) - {u, v}


@pytest.mark.parametrize(("name", "most"), [("_MOST_ENTRIES", 63), ("_MOST_WORK", 1e3)])
def test_a_part_that_is_too_large_has_no_order(monkeypatch: pytest.MonkeyPatch, name: str, most: float) -> None:
    """Three nodes of 8 strategies, of which two stay: a table of 64 entries, of 64 * 8 * 2 additions."""
    rng = np.random.default_rng(0)
    edges = (Edge(0, 1, rng.random((8, 8))), Edge(1, 2, rng.random((8, 8))))
    problem = Problem(tuple(rng.random((3, 8))), edges)
    labelled = replace(problem, usages=labels(problem, (0, 2)), usage_limit=0.0)
    assert _order(labelled) == [1]
    monkeypatch.setattr(within_module, name, most)
    assert _order(labelled) is None


def test_shared_nodes_of_too_many_strategies_have_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is to be eliminated, but the table of the three nodes that stay has 512 entries."""
    problem = Problem(tuple(np.zeros((3, 8))), ())
    labelled = replace(problem, usages=labels(problem, (0, 1, 2)), usage_limit=0.0)
    assert _order(labelled) == []
    monkeypatch.setattr(within_module, "_MOST_ENTRIES", 511)
    assert _order(labelled) is None


def alone(certificate: Certificate, kept: tuple[int, ...], size: tuple[int, ...]) -> np.ndarray:
    """What the certificate's problem costs at least for each strategy of the nodes that are kept."""
    problem, table = certificate.problem, np.full(size, np.inf)
    for choice in itertools.product(*map(range, problem.counts)):
        at = tuple(choice[v] for v in kept)
        table[at] = min(table[at], objective(problem, choice))
    return table


@pytest.mark.parametrize("seed", [2, 4, 5, 7, 8, 11])
def test_a_window_that_becomes_narrower_holds_all_below_where_it_ends(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Compared with trying all choices of six nodes, where so little may be eliminated that only a narrow one fits."""
    rng = np.random.default_rng(seed)
    pairs = list(itertools.combinations(range(6), 2))
    edges = tuple(Edge(u, v, rng.random((4, 4))) for u, v in pairs)
    problem = Problem(tuple(rng.random((6, 4))), edges)
    labelled = replace(problem, usages=labels(problem, (0, 1)), usage_limit=np.inf)
    _, certificate = Ascent(labelled, OPTIONS).sweeps(np.inf, Best(labelled, None, None))
    table = alone(certificate, (0, 1), (4, 4))
    monkeypatch.setattr(within_module, "_MOST_WORK", 500.0)
    upper = float(table.max())
    found = within_module.within(certificate, upper, OPTIONS, Best(labelled, None, None), narrower=9)
    assert found is not None
    assert certificate.bound < found.upper < upper
    whole = np.full_like(table, np.inf)
    whole[np.ix_(*found.ids)] = found.table
    below = table < found.upper - 1e-9
    assert whole[below] == pytest.approx(table[below], abs=1e-9)
    assert (whole >= table - 1e-9).all()
    assert below.any()


def torn(layers: int, dislike: float) -> Problem:
    """Layers that rather have another strategy than the ends: of few, the ends decide, and of many, the layers.

    Every two nodes of a layer of five are joined, so that messages take long to settle.
    """
    rng, size, count = np.random.default_rng(3), 5, 4
    own, unequal = list(0.05 * rng.random((size, count))), 1 - np.eye(count)
    for cost in own:
        cost[0] += dislike / size
    pairs = [(i, j, 0.3 * unequal + 0.05 * rng.random((count, count))) for i in range(size) for j in range(i)]
    links = [(i, j, 0.3 * unequal + 0.02 * rng.random((count, count))) for i, j in ((0, 3), (1, 4))]
    nodes, edges = list[np.ndarray](), list[Edge]()
    for first in range(0, size * layers, size):
        nodes += own
        edges += [Edge(first + i, first + j, cost) for i, j, cost in pairs]
        edges += [Edge(first + i, first - size + j, cost) for i, j, cost in links if first]
    ends = np.array([0.0, 1.0, 1.0, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    edges += [Edge(0, len(nodes), 5 * unequal), Edge(len(nodes) - 1, len(nodes) + 1, 5 * unequal)]
    return Problem((*nodes, *ends), tuple(edges))


@pytest.mark.parametrize(("layers", "dislike", "most"), [(48, 0.01, 3), (48, 0.05, 2), (24, 0.05, 2)])
def test_few_are_more_where_they_do_not_tell(
    monkeypatch: pytest.MonkeyPatch, layers: int, dislike: float, most: int
) -> None:
    """Until they do, or all are swept; no window of the whole is needed then."""
    problem, met = torn(layers, dislike), list[int]()

    def counted(*args: Any) -> Few | None:
        found = few_of(*args)
        met.append(0 if found is None else len(found.short.problem.counts))
        return found

    def never(*_: object) -> None:
        pytest.fail("a window of the whole was squeezed")

    monkeypatch.setattr(messages_module, "few_of", counted)
    monkeypatch.setattr(closing_module, "squeeze_windows", never)
    solution = solve(problem, options=replace(OPTIONS, max_rounds=0))
    assert solution.gap == 0
    assert solution.objective == pytest.approx(solve(problem).objective)
    assert len(met) == most
    assert all(2 * few < 3 * more for few, more in itertools.pairwise(met) if more)
    verify(problem, solution)


def test_nodes_without_a_choice_are_no_axes_of_arrays() -> None:
    """One node between more others than an array has axes, none of which has a choice."""
    leaves = range(2, 82)
    edges = (Edge(0, 1, np.eye(2)), *(Edge(1, leaf, np.array([[1.0], [0.5]])) for leaf in leaves))
    problem = Problem((np.zeros(2), np.array([0.0, 30.0]), *(np.zeros(1) for _ in leaves)), edges)
    labelled = replace(problem, usages=labels(problem, (0,)), usage_limit=np.inf)
    order = [1, *leaves]
    found = within_module._eliminated_to_labels(unchanged(labelled), order, 100.0)
    assert found.table.tolist() == [70.0, 71.0]
    assert objective(problem, found.choice((0,))) == 70.0


def test_more_labels_than_axes_have_no_order() -> None:
    problem = Problem(tuple(np.zeros((70, 1))), ())
    assert _order(replace(problem, usages=labels(problem, range(60)), usage_limit=0.0)) is not None
    assert _order(replace(problem, usages=labels(problem, range(70)), usage_limit=0.0)) is None


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_a_part_that_is_too_much_is_joined_but_for_its_labels(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """What a window holds is the same, as trying all choices tells, where elimination may take little."""
    rng = np.random.default_rng(seed)
    edges = tuple(Edge(u, v, rng.random((4, 4))) for u, v in itertools.combinations(range(6), 2))
    problem = Problem(tuple(rng.random((6, 4))), edges)
    labelled = replace(problem, usages=labels(problem, (0, 1)), usage_limit=np.inf)
    _, certificate = Ascent(labelled, OPTIONS).sweeps(np.inf, Best(labelled, None, None))
    table = alone(certificate, (0, 1), (4, 4))
    monkeypatch.setattr(within_module, "_MOST_WORK", 100.0)
    monkeypatch.setattr(within_module, "is_thin", lambda _: True)
    upper = float(table.min()) + 0.3
    found = within_module.within(certificate, upper, OPTIONS, Best(labelled, None, None))
    assert found is not None
    assert (found.upper, found.least) == (upper, pytest.approx(table.min()))
    whole = np.full_like(table, np.inf)
    whole[np.ix_(*found.ids)] = found.table
    below = table < upper - 1e-9
    assert whole[below] == pytest.approx(table[below])
    assert any(isinstance(step, Join) for step in found.proof)
