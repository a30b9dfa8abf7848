"""Few periods: layers are those that are told; shortened and put back they are what they were, and nothing is lost."""

from __future__ import annotations

import itertools
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, Problem, SolveOptions, Usage, solve, verify
from autopar.solve.periodic.few_periods import Shortened, shortened
from autopar.solve.periodic.layers import with_layers
from autopar.solve.pipeline.rounds import by_messages
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.arrays import per_edge
from autopar.solve.trws.dual import Dual
from tests.solve.draw import chain_with_skips
from tests.solve.oracle import optimum

BY_MESSAGES = SolveOptions(max_table_entries=1, max_elimination_work=1.0)
NAMES = (
    "in",
    "out",
    "loss",
    "grad in",
    "grad out",
    "weight",
    "grad weight",
    "mean",
    "square",
    "new",
)
INNER = [
    ("in", "out"),
    ("grad out", "grad in"),
    ("in", "weight"),
    ("weight", "grad in"),
    ("out", "loss"),
]
INNER += [
    ("loss", "grad out"),
    ("in", "grad weight"),
    ("grad out", "grad weight"),
    ("grad weight", "mean"),
]
INNER += [("grad weight", "square"), ("mean", "new"), ("square", "new"), ("new", "weight")]


def step(
    layers: int, *, untold: tuple[str, ...] = (), hub: bool = False, odd: int | None = None
) -> Problem:
    """A training step in outline: all forward, then all backward from the last layer on, then all updates.

    Nothing is told of the nodes `untold`; one layer may have an edge more; all may meet one hub.
    """
    rng = np.random.default_rng(0)
    costs = {name: rng.random(3) for name in NAMES}
    matrices = {
        pair: rng.random((3, 3)) for pair in [*INNER, ("out", "in"), ("grad in", "grad out")]
    }
    order = [(name, n) for n in range(layers) for name in ("in", "out")]
    order += [
        (name, n) for n in reversed(range(layers)) for name in ("loss", "grad out", "grad in")
    ]
    order += [(name, n) for n in range(layers) for name in NAMES[5:]]
    at = {node: v for v, node in enumerate(order)}

    edges = [Edge(at[a, n], at[b, n], matrices[a, b]) for n in range(layers) for a, b in INNER]
    for low, high in itertools.pairwise(range(layers)):
        edges.append(Edge(at["out", low], at["in", high], matrices["out", "in"]))
        edges.append(
            Edge(at["grad in", high], at["grad out", low], matrices["grad in", "grad out"])
        )
    if odd is not None:
        edges.append(Edge(at["in", odd], at["square", odd], rng.random((3, 3))))
    end, to_hub = len(order), rng.random((4, 3))
    edges += [Edge(end, at["in", n], to_hub) for n in range(layers) if hub]
    edges.append(Edge(1, end, rng.random((3, 4))))
    periods = [-1 if name in untold else NAMES.index(name) for name, _ in order]
    node_costs = (*(costs[name] for name, _ in order), rng.random(4))
    return Problem(node_costs, tuple(edges), periods=np.array([*periods, -1], dtype=np.intp))


@st.composite
def repeating(draw: st.DrawFn, most_blocks: int = 12) -> Problem:
    """Blocks of nodes, each the same and joined to the next the same way, between two ends; maybe all to one hub."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    blocks, nodes = draw(st.integers(4, most_blocks)), draw(st.integers(1, 3))
    is_whole, hub, costs_differ = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())

    def drawn(*shape: int) -> np.ndarray:
        return rng.integers(0, 4, shape).astype(float) if is_whole else rng.random(shape)

    counts = rng.integers(2, 4, nodes).tolist()
    costs, edges, own = [drawn(2)], list[Edge](), [drawn(count) for count in counts]
    inner = [
        (i, j, drawn(counts[i], counts[j]))
        for i in range(nodes)
        for j in range(i)
        if rng.random() < 0.8
    ]
    outer = [
        (i, j, drawn(counts[i], counts[j]))
        for i in range(nodes)
        for j in range(nodes)
        if rng.random() < 0.6
    ]
    to_hub, at = drawn(counts[0], 2), [1 + nodes * block for block in range(blocks)]
    for first in at:
        costs += [cost + drawn(len(cost)) if costs_differ else cost for cost in own]
        edges += [Edge(first + i, first + j, cost) for i, j, cost in inner]
        edges += [Edge(first, 0, to_hub)] if hub else []
    for first, after in itertools.pairwise(at):
        edges += [Edge(first + i, after + j, cost) for i, j, cost in outer]
    edges += [Edge(at[0], 0, drawn(counts[0], 2))] if not hub else []
    edges.append(Edge(at[-1] + nodes - 1, len(costs), drawn(counts[-1], 3)))
    periods = np.array([-1, *list(range(nodes)) * blocks, -1], dtype=np.intp)
    return Problem((*costs, drawn(3)), tuple(edges), periods=periods)


def short_of(problem: Problem, more: int = 0) -> Shortened:
    found = shortened(with_layers(problem), more)
    assert found is not None
    return found


def check_alike(problem: Problem, short: Shortened, *, same_costs: bool = True) -> None:
    """Every edge is like the one that it is said to be like, the same way round; so is every node."""
    small, likes, nodes = short.problem, short.edges.tolist(), short.nodes.tolist()
    assert len({frozenset((edge.u, edge.v)) for edge in small.edges}) == len(small.edges)
    for edge, like in zip(problem.edges, likes, strict=True):
        assert edge.cost is small.edges[like].cost
        assert small.counts[small.edges[like].u] == problem.counts[edge.u]
        assert small.counts[small.edges[like].v] == problem.counts[edge.v]
    for v, like in enumerate(nodes):
        assert problem.node_costs[v] is small.node_costs[like] or not same_costs


@pytest.mark.parametrize("hub", [False, True])
@pytest.mark.parametrize(
    "untold", [(), ("mean", "new"), ("weight", "grad weight", "mean", "square", "new")]
)
def test_layers_are_found_where_the_backward_pass_winds_back(
    untold: tuple[str, ...], hub: bool
) -> None:
    """Whether the update of parameters is told or not; what is left does not grow with the layers."""
    shorter, problem = (step(layers, untold=untold, hub=hub) for layers in (20, 40))
    few, many = short_of(shorter), short_of(problem)
    check_alike(problem, many)
    assert len(many.problem.counts) == len(few.problem.counts) <= 6 * len(NAMES)


def test_a_layer_that_differs_stays() -> None:
    problem = step(60, odd=12)
    short = short_of(problem)
    check_alike(problem, short)
    assert len(short.problem.counts) < len(problem.counts) / 3
    kept = {id(edge.cost) for edge in short.problem.edges}
    assert kept == {id(edge.cost) for edge in problem.edges}


def test_as_many_layers_more_stay_as_are_asked_for() -> None:
    problem = step(40)
    sizes = [len(short_of(problem, more).problem.counts) for more in (0, 4, 12)]
    assert np.diff(sizes).tolist() == [4 * len(NAMES), 8 * len(NAMES)]
    assert shortened(with_layers(problem), 40) is None


@settings(max_examples=150, deadline=None)
@given(
    problem=repeating(most_blocks=30), seed=st.integers(0, 1000), more=st.sampled_from((0, 3, 9))
)
def test_the_whole_is_made_of_what_is_left(problem: Problem, seed: int, more: int) -> None:
    whole = with_layers(problem)
    short, dual = shortened(whole, more), Dual(whole, memory_rows(whole))
    if short is None:
        return
    small, rng = short.problem, np.random.default_rng(seed)
    assert len(small.counts) < len(problem.counts)
    check_alike(problem, short, same_costs=False)
    flat = Dual(small, memory_rows(small)).flat
    messages = rng.random(flat.size)
    sent = per_edge(flat, messages)
    likes: list[int] = short.edges.tolist()
    for (to_u, to_v), like in zip(
        per_edge(dual.flat, short.messages(dual.flat, flat, messages)), likes, strict=True
    ):
        assert np.array_equal(to_u, sent[like][0])
        assert np.array_equal(to_v, sent[like][1])
    choice = short.choice(tuple(int(rng.integers(n)) for n in small.counts))
    assert all(s < n for s, n in zip(choice, problem.counts, strict=True))


@settings(max_examples=40, deadline=None)
@given(problem=repeating(most_blocks=7))
def test_beginning_at_tiled_messages_gives_bounds_and_choices(problem: Problem) -> None:
    """Compared with trying all, where layers cost the same and where they do not; the witness is checked."""
    if np.prod([float(n) for n in problem.counts]) > 20_000:
        return
    solution, best = solve(problem, options=BY_MESSAGES), optimum(problem)
    verify(problem, solution)
    assert solution.lower_bound <= best + 1e-9
    assert solution.objective == pytest.approx(best)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(problem=repeating(most_blocks=40))
def test_annealing_few_of_the_layers_gives_choices_of_all(problem: Problem) -> None:
    """Where a gap is let be that tiling does not reach: compared with the optimum by elimination; again the same."""
    options = replace(
        BY_MESSAGES,
        max_cp_sat_entries=0,
        gap_tolerance=1e-9,
        anneal_passes=10,
        region_steps=20,
        max_rounds=0,
    )
    found, best = solve(problem, options=options), solve(problem)
    verify(problem, found)
    assert best.objective == best.lower_bound
    assert found.lower_bound <= best.objective * (1 + 1e-9)
    assert found.objective >= best.objective * (1 - 1e-9)
    assert solve(problem, options=options) == found


def test_what_is_not_told_and_what_shares_memory_is_left_whole() -> None:
    even = step(40)
    assert shortened(with_layers(replace(even, periods=None))) is None
    limited = replace(even, usages=(Usage(0, 0, 1, np.ones(3)),), usage_limit=0.5)
    assert shortened(with_layers(limited)) is None


@pytest.mark.parametrize("is_told", [True, False])
def test_sweeps_do_not_grow_with_the_layers_that_are_told(is_told: bool) -> None:
    """Of five times as many layers the sweeps are as many: nearly all of them are of a few layers."""

    def sweeps(blocks: int) -> dict[int, int]:
        plain, counted = Dual.sweep, dict[int, int]()
        problem = chain_with_skips(8 * blocks, 8, 8, 0)
        told = np.arange(8 * blocks) % 8
        problem = replace(problem, periods=told.astype(np.intp) if is_told else None)

        def counting(dual: Dual) -> None:
            nodes = len(dual.flat.start) - 1
            counted[nodes] = counted.get(nodes, 0) + 1
            plain(dual)

        little = replace(BY_MESSAGES, max_rounds=0, max_total_entries=1)
        with patch.object(Dual, "sweep", counting):
            by_messages(with_layers(problem), little, Best(problem, None, None), np.inf)
        return counted

    few, many = sweeps(40), sweeps(200)
    if is_told:
        assert sorted(few.values()) == sorted(many.values())
        assert few[min(few)] == many[min(many)] >= 10 * many[max(many)]
    else:
        assert [*few, *many] == [8 * 40, 8 * 200]


def test_ties_are_broken_where_layers_at_an_end_have_fewer_candidates() -> None:
    costs = (np.zeros(3), np.zeros(2), np.zeros(3))
    edges = (Edge(0, 1, np.zeros((3, 2))), Edge(1, 2, np.zeros((2, 3))))
    each = np.arange(3)
    short = Shortened(Problem(costs, edges), each, np.arange(2), np.array([0, 0, 0]))
    first, middle, last = short.without_ties().node_costs
    assert (first == last).all()
    assert len(middle) == 2
