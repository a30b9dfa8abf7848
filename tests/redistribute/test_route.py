"""Routes reach their target and no other sequence of steps is cheaper."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.core.graph import TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.redistribute.collective import size_bytes
from autopar.redistribute.graph import state_graph
from autopar.redistribute.route import NoRoute, Router
from autopar.redistribute.steps import steps_from
from tests.equivalence.cases import with_permutes
from tests.redistribute import oracle, prices, simulate
from tests.redistribute.greedy import Greedy

CUBE = DeviceMesh.of({"x": 2, "y": 2, "z": 2})
REFINED = DeviceMesh.of({"a": 2, "b": 2, "c": 2, "d": 2})
PAIR = DeviceMesh.of({"x": 2, "y": 4})
LINE = DeviceMesh.of({"x": 8})
MIXED = DeviceMesh.of({"x": 4, "y": 2, "z": 2})
SINGLES = [
    placement
    for placement in oracle.all_placements(CUBE, 3)
    if not placement.unreduced and all(len(axes) <= 1 for axes in placement.dims)
]
KINDS = ("sum", "max")


def placements_of(mesh, shape, kinds=("sum",)):
    return [p for p in oracle.all_placements(mesh, len(shape), kinds) if p.fits(shape, mesh)]


def cost_of(router, route, shape, itemsize):
    return sum((router.step_cost(step, shape, itemsize) for step in route), 0.0)


def assert_reaches(route, source, target, shape, mesh, seed=0):
    rng = np.random.default_rng(seed)
    array = rng.integers(-99, 99, shape)
    local = simulate.distribute(array, source, mesh, rng)
    at = source
    for step in route:
        assert step.before == at
        local, at = simulate.apply_step(local, step, mesh), step.after
        simulate.assert_holds(local, array, at, mesh)
    assert at == target


# Never worse than any other sequence ----------------------------------------------------------------------------------


@pytest.mark.quick_share(6)
@pytest.mark.parametrize("name", prices.ALL)
def test_all_single_axis_pairs_on_the_cube(name):
    assert len(SINGLES) == 34
    shape, price = (8, 16, 8), prices.ALL[name](CUBE)
    everything = placements_of(CUBE, shape)
    at = [everything.index(placement) for placement in SINGLES]
    best = oracle.cheapest(everything, shape, 4, CUBE, price)[np.ix_(at, at)]
    router = Router(CUBE, price)
    np.testing.assert_allclose(
        router.cost_matrix(shape, 4, SINGLES, SINGLES), best, rtol=1e-12, atol=0
    )
    for i, source in enumerate(SINGLES):
        for j, target in enumerate(SINGLES):
            route = router.route(shape, 4, source, target)
            assert cost_of(router, route, shape, 4) == pytest.approx(best[i, j], rel=1e-12, abs=0)


@pytest.mark.parametrize(
    "every", [pytest.param(7, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ["alpha_beta", "slice_bytes"])
def test_replaying_single_axis_pairs_reaches_the_target(name, every):
    shape = (2, 4, 2)
    router = Router(CUBE, prices.ALL[name](CUBE))
    for source, target in list(product(SINGLES, SINGLES))[::every]:
        assert_reaches(router.route(shape, 4, source, target), source, target, shape, CUBE)


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(
    ("mesh", "shape"),
    [
        (CUBE, (8, 8)),
        (CUBE, (4, 6, 3)),
        (CUBE, ()),
        (PAIR, (8, 8, 8)),
        (PAIR, (4, 6, 8)),
        (LINE, (8, 16, 8)),
        (LINE, (4, 12)),
        (MIXED, (16, 8)),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_all_pairs_of_placements_with_any_price(mesh, shape, seed):
    """Unreduced sources and targets of two kinds, every order of axes; prices realistic, or without reason."""
    price = prices.lottery(seed) if seed else prices.alpha_beta(mesh)
    everything = placements_of(mesh, shape, KINDS)
    best = oracle.cheapest(everything, shape, 4, mesh, price)
    router = Router(mesh, price)
    found = router.cost_matrix(shape, 4, everything, everything)
    np.testing.assert_allclose(found, best, rtol=1e-12, atol=0)
    for i, j in np.random.default_rng(seed).integers(len(everything), size=(40, 2)):
        if math.isfinite(best[i, j]):
            route = router.route(shape, 4, everything[i], everything[j])
            # sums round by version
            assert cost_of(router, route, shape, 4) == pytest.approx(found[i, j], rel=1e-12)
        else:
            with pytest.raises(NoRoute, match="no step of finite price"):
                router.route(shape, 4, everything[i], everything[j])


@st.composite
def journeys(draw):
    mesh = draw(st.sampled_from([CUBE, REFINED, PAIR, LINE, MIXED]))
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=0, max_size=4).map(tuple))
    ends = st.builds(
        lambda seed, kind: random_placement(seed, kind, shape, mesh),
        st.integers(0, 2**32),
        st.sampled_from(KINDS),
    )
    return mesh, shape, draw(ends), draw(ends)


def random_placement(seed, kind, shape, mesh):
    rng = np.random.default_rng(seed)
    dims, unreduced = [()] * len(shape), ()
    for axis in rng.permutation(mesh.names).tolist():
        role = int(rng.integers(-2, len(shape)))
        if role == -2:
            unreduced += (axis,)
        elif role >= 0 and shape[role] % mesh.product((*dims[role], axis)) == 0:
            dims[role] += (axis,)
    return Placement(tuple(dims), unreduced, kind)


@settings(max_examples=80, deadline=None)
@given(journey=journeys(), seed=st.integers(0, 3))
def test_replaying_any_route_reaches_the_target(journey, seed):
    mesh, shape, source, target = journey
    router = Router(mesh, prices.alpha_beta(mesh) if seed else prices.alpha(mesh))
    route = router.route(shape, 2, source, target)
    best = router.cost_matrix(shape, 2, [source], [target])[0, 0]
    assert cost_of(router, route, shape, 2) == pytest.approx(best, rel=1e-12, abs=0)
    assert best < math.inf
    assert_reaches(route, source, target, shape, mesh, seed)


# Against another system -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "exchange", "worse", "ratio"),
    [
        ("slice_bytes", True, 144, 5 / 3),
        ("elements", True, 714, 32 / 9),
        ("elements_without_exchange", False, 216, 7 / 4),
    ],
)
def test_wins_wherever_the_greedy_route_loses(name, exchange, worse, ratio):
    """`worse` and `ratio` are facts about the greedy: pairs it loses to the best route over its own placements."""
    shape, price = (8, 8, 8), prices.ALL[name](CUBE)
    greedy = np.array(
        [[_greedy_cost(s, t, exchange, shape, price) for t in SINGLES] for s in SINGLES]
    )
    same_moves = oracle.cheapest(SINGLES, shape, 1, CUBE, price)
    found = Router(CUBE, price).cost_matrix(shape, 1, SINGLES, SINGLES)
    lost = greedy > same_moves
    assert (found <= same_moves).all()
    assert (found[lost] < greedy[lost]).all()
    assert lost.sum() == worse
    assert (greedy[lost] / same_moves[lost]).max() == pytest.approx(ratio)


def _greedy_cost(source, target, exchange, shape, price):
    total = 0.0
    moves = Greedy(source, target, exchange=exchange).run()
    for before, after in moves:
        kind, axes = oracle.link(before, after, CUBE)
        total += price(
            kind, axes, max(before.local_size(shape, CUBE), after.local_size(shape, CUBE))
        )
    assert (moves[-1][1] if moves else source) == target
    return total


# [512, 1024] on the device matrix 2 x 4 x 2, its first and last axis on the dims, to 4 x 2 x 2, first and second axis.
# On the refined mesh a, b, c, d of two each, the matrices are (a, bc, d) and (ab, c, d).
REFINEMENT = (512, 1024), Placement((("a",), ("d",))), Placement((("a", "b"), ("c",)))


@pytest.mark.parametrize("name", prices.ALL)
def test_device_matrices_that_differ(name):
    shape, source, target = REFINEMENT
    price = prices.ALL[name](REFINED)
    router = Router(REFINED, price)
    route = router.route(shape, 4, source, target)
    by_hand = [
        ("slice", ("b",), 256 * 512),
        ("all_gather", ("d",), 128 * 1024),
        ("slice", ("c",), 128 * 1024),
    ]
    count = Counter(step.kind for step in route)
    assert set(count) <= {"all_gather", "slice", "permute"}
    assert count["all_gather"] + count["permute"] <= 1
    assert cost_of(router, route, shape, 4) <= sum(
        price(kind, axes, 4 * size) for kind, axes, size in by_hand
    )
    assert_reaches(route, source, target, (8, 8), REFINED)


@pytest.mark.slow
def test_no_sequence_of_steps_between_device_matrices_is_cheaper():
    shape, source, target = REFINEMENT
    price = prices.alpha_beta(REFINED)
    everything = placements_of(REFINED, shape)
    best = oracle.cheapest(everything, shape, 4, REFINED, price)[
        everything.index(source), everything.index(target)
    ]
    assert Router(REFINED, price).cost_matrix(shape, 4, [source], [target])[0, 0] == pytest.approx(
        best, rel=1e-12
    )


# Properties -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*prices.ALL, "lottery"])
def test_costs_are_a_metric_but_for_symmetry(name):
    price = prices.lottery(7) if name == "lottery" else prices.ALL[name](CUBE)
    everything = placements_of(CUBE, (8, 4), KINDS)
    cost = Router(CUBE, price).cost_matrix((8, 4), 2, everything, everything)
    assert (cost >= 0).all()
    assert (np.diag(cost) == 0).all()
    for middle in range(len(everything)):
        assert (cost <= (cost[:, middle, None] + cost[middle]) * (1 + 1e-12)).all()


def test_the_cost_does_not_depend_on_what_else_is_asked():
    everything = placements_of(CUBE, (8, 4), ("sum", "max", "min"))
    price = prices.lottery(3)
    cost = Router(CUBE, price).cost_matrix((8, 4), 2, everything, everything)
    for i, source in list(enumerate(everything))[::17]:
        for j, target in list(enumerate(everything))[::19]:
            assert (
                Router(CUBE, price).cost_matrix((8, 4), 2, [source], [target])[0, 0] == cost[i, j]
            )


@pytest.mark.parametrize("name", ["alpha_beta", "beta", "elements"])
def test_costs_grow_with_the_bytes(name):
    router = Router(CUBE, prices.ALL[name](CUBE))
    everything = placements_of(CUBE, (8, 8))
    costs = [
        router.cost_matrix((8, 8 * k), itemsize, everything, everything)
        for k, itemsize in [(1, 1), (1, 2), (3, 2), (2, 4)]
    ]
    for smaller, larger in pairwise(costs):
        assert (smaller <= larger).all()
    assert (costs[0] < costs[-1]).any()


def test_routes_are_deterministic_and_short():
    """In whatever order things were asked before; where everything is free, one step does if one can."""
    everything = placements_of(CUBE, (8, 8), KINDS)
    free = Router(CUBE, lambda kind, axes, size_bytes: 0.0)
    again = Router(CUBE, lambda kind, axes, size_bytes: 0.0)
    again.cost_matrix((8, 8), 4, everything[::-1], everything)
    for source in everything[::5]:
        for target in everything[::7]:
            route = free.route((8, 8), 4, source, target)
            assert route == again.route((8, 8), 4, source, target)
            assert (len(route) <= 1) == (
                source == target or oracle.link(source, target, CUBE) is not None
            )
    assert free.route((8, 8), 4, everything[3], everything[3]) == ()


def test_each_price_is_asked_once():
    asked = Counter()

    def price(kind, axes, size_bytes):
        asked[kind, axes, size_bytes] += 1
        return 1.0

    router = Router(CUBE, price)
    everything = placements_of(CUBE, (8, 8))
    for shape, itemsize in [((8, 8), 4), ((16, 8), 2), ((8, 8), 2), ((8, 8), 4)]:
        router.cost_matrix(shape, itemsize, everything, everything)
        router.route(shape, itemsize, everything[0], everything[-1])
    assert set(asked.values()) == {1}


def test_only_steps_that_exist_are_priced():
    asked = set()

    def price(kind, axes, size_bytes):
        asked.add((kind, axes, size_bytes))
        return 1.0

    shape, whole = (6, 4), Placement.replicated(2)
    Router(CUBE, price).cost_matrix(shape, 4, [whole], [whole])
    steps = [
        step
        for placement in placements_of(CUBE, shape)
        for step in steps_from(placement, shape, CUBE)
    ]
    assert asked == {(step.kind, step.axes, size_bytes(step, shape, 4, CUBE)) for step in steps}


def test_shapes_of_equal_size_are_told_apart():
    router = Router(CUBE, prices.alpha_beta(CUBE))
    for shape in [(8, 8), (64, 1), (1, 64), (2, 32), (16, 4)]:
        everything = placements_of(CUBE, shape)
        fresh = Router(CUBE, prices.alpha_beta(CUBE)).cost_matrix(shape, 4, everything, everything)
        np.testing.assert_array_equal(router.cost_matrix(shape, 4, everything, everything), fresh)


def test_a_sum_becomes_a_maximum():
    source, target = Placement(((), ()), ("x",), "sum"), Placement(((), ()), ("y",), "max")
    route = Router(CUBE, prices.alpha_beta(CUBE)).route((8, 8), 4, source, target)
    assert sorted(step.kind for step in route) == ["all_reduce", "mask"]
    assert_reaches(route, source, target, (8, 8), CUBE)


def test_parallel_steps_over_axes_of_size_one_take_the_cheaper():
    mesh = DeviceMesh.of({"a": 1, "x": 2})
    source, target = Placement((("a",), ())), Placement(((), ("a",)))
    for dear in ("all_to_all", "permute"):
        router = Router(
            mesh, lambda kind, axes, size_bytes, dear=dear: 5.0 if kind == dear else 1.0
        )
        assert router.cost_matrix((4, 4), 4, [source], [target]).tolist() == [[1.0]]
        (step,) = router.route((4, 4), 4, source, target)
        assert step.kind != dear


def test_bad_input_is_refused():
    router = Router(CUBE, prices.alpha(CUBE))
    whole = Placement.replicated(2)
    with pytest.raises(ValueError, match="does not divide"):
        router.cost_matrix((6, 3), 4, [whole], [Placement((("x", "y"), ()))])
    with pytest.raises(ValueError, match="no placement"):
        router.route((8, 8), 4, whole, Placement((("w",), ())))
    with pytest.raises(ValueError, match="no placement"):
        router.route((8, 8), 4, Placement.replicated(3), whole)
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="prices are >= 0"):
            Router(CUBE, lambda kind, axes, size_bytes, wrong=wrong: wrong).route(
                (8, 8), 4, whole, whole
            )


def test_nothing_is_possible_or_asked():
    router = Router(CUBE, lambda kind, axes, size_bytes: math.inf)
    whole, split = Placement.replicated(1), Placement((("x",),))
    assert router.cost_matrix((8,), 4, [whole, split], [whole, split]).tolist() == [
        [0, math.inf],
        [math.inf, 0],
    ]
    assert router.cost_matrix((8,), 4, [], [whole]).shape == (0, 1)
    assert router.cost_matrix((8,), 4, [whole], []).shape == (1, 0)


def test_forgetting_changes_nothing(monkeypatch):
    everything = placements_of(PAIR, (8, 8))
    shapes = [(8, 8), (16, 8), (8, 8)]
    keeps = Router(PAIR, prices.alpha_beta(PAIR))
    monkeypatch.setattr("autopar.redistribute.route.CACHE_BYTES", 0)
    forgets = Router(PAIR, prices.alpha_beta(PAIR))
    for shape in shapes:
        expected = keeps.cost_matrix(shape, 4, everything, everything)
        np.testing.assert_array_equal(
            forgets.cost_matrix(shape, 4, everything, everything), expected
        )


@pytest.mark.parametrize(
    ("axes", "rank", "states", "steps"),
    [(3, 3, 176, 2552), (3, 5, 458, 9368), (4, 5, 4256, 164250)],
)
def test_the_graph_holds_every_placement_and_stays_small(axes, rank, states, steps):
    mesh = DeviceMesh.of(dict.fromkeys("abcd"[:axes], 2))
    graph = state_graph(mesh, rank, frozenset({"sum"}))
    assert len(graph.placements) == states == len(oracle.all_placements(mesh, rank))
    assert len(graph.tail) == steps


@pytest.mark.parametrize("place", [{"on_host": True}, {"fixed": True}, {"manual": ("x", "y")}])
def test_nothing_is_sent_of_what_is_on_the_host_or_fixed(place: dict[str, Any]) -> None:
    mesh, shape = DeviceMesh.of({"x": 2, "y": 4}), (8, 8)
    router = Router(mesh, with_permutes)
    every = placements_of(mesh, shape)
    assert router.of(TensorInfo(0, shape, "float32", 4)) is router
    costs = router.of(TensorInfo(0, shape, "float32", 4, **place)).cost_matrix(
        shape, 4, every, every
    )
    np.testing.assert_array_equal(costs, np.where(np.eye(len(every)), 0, np.inf))


def test_what_hides_keeps_its_prices_where_axes_are_barred() -> None:
    mesh = DeviceMesh.of({"x": 2, "y": 2})
    split, whole = Placement((("y",),)), Placement(((),))
    lighter = Router(mesh, lambda _kind, _axes, _size: 1.0)
    router = Router(mesh, lambda _kind, _axes, _size: 2.0, hidden=lighter)
    costs = [
        float(one.cost_matrix((4,), 4, (split,), (whole,))[0, 0])
        for one in (router, router.hidden, router.without(("x",)), router.without(("x",)).hidden)
    ]
    assert costs == [2.0, 1.0, 2.0, 1.0]


def test_without_masks_nothing_becomes_a_part_of_a_sum():
    router = Router(PAIR, with_permutes)
    whole, split = Placement.replicated(2), Placement((("x",), ()))
    parts = Placement(((), ()), ("x",))
    assert router.cost_matrix((8, 8), 4, (whole,), (parts,))[0, 0] < math.inf
    barred = router.unmasked
    assert barred.cost_matrix((8, 8), 4, (whole, split), (parts,)).min() == math.inf
    for target in (whole, split):  # what is in parts is reduced as ever
        found = (r.cost_matrix((8, 8), 4, (parts,), (target,)) for r in (router, barred))
        assert next(found) == next(found)
