"""Plans that recompute: they fit where none does that keeps all, compute the same, say what they do, are saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import autopar
from autopar.api.plan_file import to_json
from autopar.backends.known import UNKNOWN
from autopar.core.dataflow import dataflow
from autopar.core.mesh import DeviceMesh
from autopar.core.program import Compute
from autopar.core.recompute import with_recomputed
from autopar.emit.barriers import anew
from autopar.emit.wrap import device_mesh, wrap
from autopar.errors import InvalidOption, NoFeasiblePlan, PlanFileError, Unsolved
from autopar.inspect.hlo import peak_memory_bytes
from autopar.ops.traits import is_fusible
from autopar.passes.pipeline import build_program
from autopar.redistribute.route import Router
from autopar.search import mesh_search, recompute
from autopar.search.best_bound_first import RaceResult
from autopar.search.limited_solve import LimitedSolve
from autopar.search.recomputable import recomputable
from autopar.search.space import build_space
from autopar.search.task import Planned
from autopar.search.verify_plan import verify_plan
from autopar.solve import InvalidSolution, NothingCheaper
from autopar.solve.certificate.proof import Proof, Unlimit
from autopar.solve.parametric.relaxation import PricedBound
from tests.recompute.steps import arrays, scanned, specs, unrolled

pytestmark = pytest.mark.usefixtures("fused_as_ever")

OPTIONS = autopar.SearchOptions()
NEVER = replace(OPTIONS, recompute="never")
SETTING: dict[str, Any] = {"cluster": "8xh100", "mesh": {"x": 8}}
ARGS = arrays(128, 4, 8192)


@lru_cache
def free() -> autopar.Plan:
    """The plan of the scanned step that no limit binds."""
    return autopar.plan(scanned, *specs(scanned, ARGS)[1], **SETTING)


@lru_cache
def limited(share: float) -> autopar.Plan:
    """The plan within a share of that plan's peak."""
    limit = int(share * free().peak_memory_bytes)
    return autopar.plan(scanned, *specs(scanned, ARGS)[1], **SETTING, memory_limit_bytes=limit)


@lru_cache
def keeping(share: float) -> autopar.Plan:
    """The plan within the same that keeps everything."""
    limit = int(share * free().peak_memory_bytes)
    return autopar.plan(
        scanned, *specs(scanned, ARGS)[1], **SETTING, memory_limit_bytes=limit, options=NEVER
    )


def xla_peak(plan: autopar.Plan) -> int:
    """What XLA sets aside for the program of `plan`."""
    return peak_memory_bytes(
        plan.compile(devices=jax.devices()).lower(*specs(scanned, ARGS)[1]).compile()
    )


def test_there_is_a_plan_where_none_keeps_everything() -> None:
    limit = int(0.6 * free().peak_memory_bytes)
    with pytest.raises(NoFeasiblePlan):
        autopar.plan(
            scanned, *specs(scanned, ARGS)[1], **SETTING, memory_limit_bytes=limit, options=NEVER
        )
    plan = limited(0.6)
    assert plan.peak_memory_bytes <= limit
    assert plan.lower_bound_s <= plan.objective_s
    assert plan.record.recomputed
    assert "kept or recomputed on x=8" in plan.summary.space


def test_where_nothing_is_met_tensors_alone_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """More is met there; what is proven is what was where all is counted, and not by these."""
    limit, asked, within = int(0.6 * free().peak_memory_bytes), list[bool](), recompute.plan_within
    proven = 0.5 * limited(0.6).lower_bound_s

    def failing(attempt: Any, limit: int, *given: Any) -> Any:
        asked.append(attempt.by_tensors)
        if attempt.by_tensors:
            return within(attempt, limit, *given)
        attempt.prove(limit, proven)
        raise Unsolved("nothing was met")

    monkeypatch.setattr(recompute, "plan_within", failing)
    monkeypatch.setattr(recompute.RecomputeSolve, "bound_without_limit", lambda *_: 0.0)
    plan = autopar.plan(scanned, *specs(scanned, ARGS)[1], **SETTING, memory_limit_bytes=limit)
    assert asked == [False, True]
    assert plan.peak_memory_bytes <= limit
    assert plan.record.recomputed
    assert plan.lower_bound_s == proven
    assert plan.verify().bound_s <= limited(0.6).lower_bound_s
    planned = plan.bound.planned
    assert planned.plan.lower_bound_s == proven
    assert planned.solution is not None
    assert planned.solution.lower_bound == 0.0
    assert not planned.solution.witness


@pytest.mark.parametrize(
    "error", [NothingCheaper(1.0, 1.0), NoFeasiblePlan("none fits"), Unsolved("nothing again")]
)
def test_what_tensors_alone_prove_impossible_is_unknown(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """They are counted at times at which a program has let go of them."""
    limit = int(0.6 * free().peak_memory_bytes)

    def failing(attempt: Any, *_: Any) -> Any:
        raise error if attempt.by_tensors else Unsolved("nothing was met")

    monkeypatch.setattr(recompute, "plan_within", failing)
    with pytest.raises(Unsolved, match="nothing was met"):
        autopar.plan(scanned, *specs(scanned, ARGS)[1], **SETTING, memory_limit_bytes=limit)


def test_the_bound_of_a_plan_that_recomputes_is_verified() -> None:
    """By the Problem that holds both choices, within the limit asked for."""
    plan = limited(0.6)
    found = plan.verify()
    assert plan.lower_bound_s * (1 - 1e-9) <= found.bound_s <= plan.objective_s
    assert found.limit_bytes is not None
    assert found.limit_bytes <= int(0.6 * free().peak_memory_bytes)
    assert str(found).startswith("bound re-checked")


def test_a_false_bound_of_a_plan_that_recomputes_is_refused() -> None:
    """A bound above what its witness proves, no witness to speak of, or one of a limit twice as high."""
    planned = limited(0.6).bound.planned
    problem, solution = planned.problem, planned.solution
    assert problem is not None
    assert problem.usage_limit is not None
    assert solution is not None
    loose = replace(problem, usage_limit=2 * problem.usage_limit)
    false = [
        replace(planned, solution=replace(solution, witness=())),
        replace(planned, problem=loose),
    ]
    false += (
        [replace(planned, solution=replace(solution, lower_bound=solution.objective))]
        if solution.gap
        else []
    )
    for plan in false:
        with pytest.raises(InvalidSolution, match="but its witness proves"):
            verify_plan(plan, plan.plan.lower_bound_s, 20.0)


def test_its_values_are_the_plain_functions() -> None:
    found = limited(0.6).compile(devices=jax.devices())(*ARGS)
    wanted = jax.jit(scanned)(*ARGS)
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_xla_sets_aside_as_much_less() -> None:
    """Under scan the saving is XLA's too: what it sets aside fell by what is claimed, and is less than is claimed."""
    before, after = xla_peak(free()), xla_peak(limited(0.6))
    assert after <= 0.65 * before
    assert before - after == pytest.approx(
        free().peak_memory_bytes - limited(0.6).peak_memory_bytes, rel=0.1
    )
    assert after <= limited(0.6).peak_memory_bytes <= 1.6 * after


def test_the_report_says_what_is_recomputed() -> None:
    what = limited(0.6).summary.recomputation
    assert what is not None
    assert what.operators == len(limited(0.6).record.recomputed)
    assert 2 * what.saved_bytes >= free().peak_memory_bytes - limited(0.6).peak_memory_bytes
    assert what.time_s >= 0
    assert "kept for the backward pass" in " ".join(limited(0.6).report().split())
    assert any(row.phase == "recompute" for row in limited(0.6).summary.operators)
    assert free().summary.recomputation is None
    assert "recomputed" not in free().report()


def test_a_saved_plan_recomputes_the_same(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    limited(0.6).save(path)
    loaded = autopar.Plan.load(path)
    assert replace(loaded.record, fingerprint="") == limited(0.6).record
    assert loaded.record.fingerprint == limited(0.6).bound.record.fingerprint
    bound = loaded.compile(scanned, devices=jax.devices()).plan(*specs(scanned, ARGS)[1])
    assert str(bound.program()) == str(limited(0.6).program())
    assert '"recomputed"' in to_json(limited(0.6).file)
    assert "recomput" not in to_json(free().file)


def test_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    pairs = [[one.op, one.before] for one in limited(0.6).record.recomputed]
    path.write_text(
        to_json(limited(0.6).file).replace(f'"recomputed": {pairs}', '"recomputed": [[3, 999]]')
    )
    with pytest.raises(PlanFileError, match="cannot run again before 999"):
        autopar.Plan.load(path).compile(scanned, devices=jax.devices()).plan(
            *specs(scanned, ARGS)[1]
        )


def test_where_the_limit_does_not_bind_nothing_changes() -> None:
    never = autopar.plan(scanned, *specs(scanned, ARGS)[1], **SETTING, options=NEVER)
    assert never.record == free().record


@pytest.mark.slow
def test_where_much_is_left_to_prove_what_holds_without_a_limit_is_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds of plans that recompute too; Ctrl-C then leaves the plan with less proven."""
    limit, expected = int(0.6 * free().peak_memory_bytes), limited(0.6).record.recomputed

    def plan() -> autopar.Plan:
        options = autopar.SearchOptions(gap_tolerance=0.0)
        return autopar.plan(
            scanned, *specs(scanned, ARGS)[1], **SETTING, memory_limit_bytes=limit, options=options
        )

    monkeypatch.setattr(recompute.RecomputeSolve, "bound_within", lambda *_: 0.0)
    found = plan()
    assert found.record.recomputed == expected
    assert found.lower_bound_s == pytest.approx(free().lower_bound_s, rel=1e-6)
    assert not found.summary.stopped

    def interrupted(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(recompute.RecomputeSolve, "bound_without_limit", interrupted)
    found = plan()
    assert found.record.recomputed == expected
    assert (found.lower_bound_s, found.summary.stopped) == (0.0, "the keyboard")


@pytest.mark.slow
def test_a_limit_costs_less_with_recomputation() -> None:
    assert limited(0.99).objective_s < keeping(0.99).objective_s
    assert limited(0.99).peak_memory_bytes <= 0.99 * free().peak_memory_bytes


@pytest.mark.slow
def test_where_the_limit_costs_little_it_is_not_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keeping everything costs a fifth more than no limit: far more, or less, is made the least that matters."""
    cost, expected = keeping(0.99).objective_s / free().objective_s - 1, limited(0.99).record
    limit = int(0.99 * free().peak_memory_bytes)
    monkeypatch.setattr("autopar.search.search.WORTH", 3 * cost)
    plan = autopar.plan(scanned, *specs(scanned, ARGS)[1], **SETTING, memory_limit_bytes=limit)
    assert plan.record.space == keeping(0.99).record.space
    assert not plan.record.recomputed
    monkeypatch.setattr("autopar.search.search.WORTH", 0.99 * cost)
    plan = autopar.plan(scanned, *specs(scanned, ARGS)[1], **SETTING, memory_limit_bytes=limit)
    assert plan.record == expected
    assert plan.record.space != keeping(0.99).record.space


def test_where_it_is_looked_into_plans_that_keep_everything_are_looked_for_on_few_meshes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the first, which says what the limit costs, and on the one that recomputation wins on."""
    asked = list[object]()
    within = mesh_search.plan_within

    def counted(attempt: LimitedSolve, *rest: Any) -> Planned:
        asked.append(attempt.ground.mesh)
        return within(attempt, *rest)

    monkeypatch.setattr(mesh_search, "plan_within", counted)
    limit = int(0.99 * free().peak_memory_bytes)
    plan = autopar.plan(
        scanned, *specs(scanned, ARGS)[1], cluster="8xh100", memory_limit_bytes=limit
    )
    assert plan.record.recomputed
    assert plan.record.stage.mesh in asked
    assert 1 <= len(asked) <= 2
    assert plan.objective_s <= limited(0.99).objective_s * (1 + OPTIONS.gap_tolerance)


@pytest.mark.slow
def test_another_limit_is_resolved_as_planned() -> None:
    tight = free().resolve(memory_limit_bytes=int(0.6 * free().peak_memory_bytes))
    assert tight.record == limited(0.6).record
    loose = limited(0.6).resolve(memory_limit_bytes=free().peak_memory_bytes)
    assert loose.objective_s == pytest.approx(free().objective_s)
    assert not loose.record.recomputed


@lru_cache
def pinned() -> autopar.Plan:
    """A plan within half with another placement of some activations."""
    across = autopar.pin(autopar.at(kind="tanh"), jax.sharding.PartitionSpec(None, "x"))
    limit = int(0.5 * free().peak_memory_bytes)
    return limited(0.6).resolve(memory_limit_bytes=limit, constraints=[across])


def test_constraints_hold_for_what_is_computed_anew() -> None:
    found = pinned().bound.planned
    tanh = [
        (op, s)
        for op, s in zip(found.graph.ops, found.plan.stage.strategies, strict=True)
        if op.kind == "tanh"
    ]
    assert any(op.recomputes is not None for op, _ in tanh)
    assert all(strategy.outs[0].dims == ((), ("x",)) for _, strategy in tanh)
    assert pinned().peak_memory_bytes <= int(0.5 * free().peak_memory_bytes)


def test_a_saved_plan_under_constraints_is_restored(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    pinned().save(path)
    bound = (
        autopar.Plan.load(path)
        .compile(scanned, devices=jax.devices())
        .plan(*specs(scanned, ARGS)[1])
    )
    assert str(bound.program()) == str(pinned().program())


@pytest.mark.slow
def test_constraints_of_plans_that_recompute_are_priced() -> None:
    (price,) = pinned().constraint_prices()
    assert price.at_least_s == pytest.approx(pinned().objective_s - limited(0.5).objective_s)
    assert price.at_least_s <= price.at_most_s


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(InvalidOption, match="'sometimes'"):
        autopar.SearchOptions(recompute="sometimes")  # type: ignore[arg-type]


def test_written_out_layers_are_computed_anew_behind_barriers() -> None:
    """As often as the graph says so, and not before the backward pass."""
    args = specs(unrolled, arrays(16, 3, 16))[1]
    plan = autopar.plan(unrolled, *args, **SETTING)
    graph = plan.bound.traced.graph
    rewritten = with_recomputed(graph, recomputable(graph)).graph
    flow = dataflow(rewritten)
    space = build_space(rewritten, flow, plan.mesh, keep=lambda _, strategies: strategies[:1])
    stage = space.stage([0] * len(space.counts))
    program = build_program(
        rewritten, flow, stage, Router(plan.mesh, without_network), without_network
    )
    text = (
        wrap(program, device_mesh(plan.mesh, jax.devices())).lower(*jax.tree.leaves(args)).as_text()
    )
    again = sum(op.kind == "tanh" for op in rewritten.ops) - sum(
        op.kind == "tanh" for op in graph.ops
    )
    assert again > 0
    assert text.count("stablehlo.tanh") == sum(op.kind == "tanh" for op in rewritten.ops)
    assert text.count("stablehlo.optimization_barrier") >= again

    makers = {
        v: one.op for one in program.instructions if isinstance(one, Compute) for v in one.outs
    }
    waited_for = {due.after for due in anew(program, UNKNOWN).values() if due.after is not None}
    assert waited_for
    assert not any(
        is_fusible(makers[value]) for value in waited_for
    )  # these would be in memory then


def without_network(kind: str, axes: tuple[str, ...], size_bytes: int) -> float:
    """Nothing moves where everything is whole."""
    del kind, axes
    return float(size_bytes)


@pytest.mark.slow
def test_layers_written_out() -> None:
    """Without a loop the program's own account shows the saving; XLA on CPU undoes it."""
    args = specs(unrolled, arrays(128, 3, 8192))[1]
    whole = autopar.plan(unrolled, *args, **SETTING)
    limit = int(0.9 * whole.peak_memory_bytes)
    plan = autopar.plan(unrolled, *args, **SETTING, memory_limit_bytes=limit)
    assert plan.peak_memory_bytes <= limit
    assert plan.record.recomputed


# Fronts ---------------------------------------------------------------------------------------------------------------


def test_a_front_goes_on_to_plans_that_recompute() -> None:
    """Where nothing keeps everything, too; bounds and plans agree with a plan that was searched alone."""
    found = autopar.front(scanned, *specs(scanned, ARGS)[1], **SETTING, points=4)
    assert len(found) == 4
    assert found.fastest.objective_s == free().objective_s
    limit = 0.6 * free().peak_memory_bytes
    assert found.smallest.peak_memory_bytes < limit
    for plan in found:
        assert plan.peak_memory_bytes <= (plan.summary.memory_limit_bytes or 0)
        plan.verify()
        if plan.peak_memory_bytes <= limit:
            assert plan.record.recomputed
            assert "kept or recomputed on x=8" in plan.summary.space
            assert plan.objective_s >= limited(0.6).lower_bound_s
        else:
            assert plan.lower_bound_s <= limited(0.6).objective_s


def test_a_front_begins_with_a_plan_that_recomputes_where_no_other_fits() -> None:
    limit = int(0.6 * free().peak_memory_bytes)
    args = specs(scanned, ARGS)[1]
    found = autopar.front(scanned, *args, **SETTING, points=2, memory_limit_bytes=limit)
    assert found.fastest.peak_memory_bytes <= limit
    assert found.fastest.objective_s == limited(0.6).objective_s
    assert found.fastest.record.recomputed


def test_meshes_about_as_good_without_the_limit_are_looked_at_in_order_of_promise() -> None:
    """What is proven of the first four is within 1 %; the last costs more, however even its axes are."""
    sizes = (2, 32), (64, 1), (4, 16), (8, 8), (8, 8)
    places: list[Any] = [
        SimpleNamespace(ground=SimpleNamespace(mesh=DeviceMesh((("x", x), ("y", y)))))
        for x, y in sizes
    ]
    bounds = dict(enumerate((1.0, 1.001, 1.005, 1.009, 1.011)))
    assert recompute._in_order(places, bounds) == [3, 2, 0, 1, 4]


PROOF: Proof = (Unlimit(),)


@dataclass(frozen=True)
class Attempt:
    """What stands for the attempt at recomputation on mesh `n`, of which `proven` is proven."""

    n: int
    proven: float
    told: list[tuple[float, Proof]] = field(default_factory=list[tuple[float, Proof]])
    is_one_of_several: bool = False

    def bound_within(self, _: int) -> float:
        return self.proven

    def prove(self, _: int, bound: float, proof: Proof) -> None:
        self.told.append((bound, proof))


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[Any]]:
    """Makes places of three meshes, of which 1.8, 1.5 and 1.1 is proven with recomputation, and 1.0 without a limit."""
    proven = {0: 1.8, 1: 1.5, 2: 1.1}
    kept: Any = SimpleNamespace(plan=SimpleNamespace(lower_bound_s=1.0))

    def place(n: int, is_over: bool) -> Any:
        options = SimpleNamespace(recompute="auto", gap_tolerance=0.005)
        stop = SimpleNamespace(is_over=is_over)
        task = SimpleNamespace(memory_limit_bytes=1, options=options, graph=object(), stop=stop)
        ground = SimpleNamespace(mesh=DeviceMesh.of({"x": 2**n}))
        return SimpleNamespace(task=task, ground=ground, binding=lambda _: (n, kept))

    monkeypatch.setattr(recompute, "with_twins", lambda _: object())
    monkeypatch.setattr(recompute, "recompute_solve", lambda _, n, *rest: Attempt(n, proven[n]))
    monkeypatch.setattr(recompute, "entries_of", lambda _: 10**6)
    monkeypatch.setattr(recompute, "_unbounded", lambda free: free)
    monkeypatch.setattr(
        recompute, "bounded_within", lambda again, *_: PricedBound(again.proven, PROOF)
    )
    return lambda is_over: [place(n, is_over) for n in range(3)]


@pytest.mark.parametrize(
    ("least", "is_over", "searched"),
    [
        (1.2, False, [2]),
        (1.4, False, [2]),
        (1.7, False, [2, 1]),
        (1.95, False, [2, 1, 0]),
        (1.2, True, [0, 1, 2]),
    ],
)
def test_meshes_are_searched_by_what_little_work_proves_of_each(
    monkeypatch: pytest.MonkeyPatch,
    three: Callable[[bool], list[Any]],
    least: float,
    is_over: bool,
    searched: list[int],
) -> None:
    """The cheapest plan, on the mesh that promises most, costs `least`; the other meshes have none as cheap.

    Where the time is over, nothing is bounded before. The mesh of the least bound is told what proved that.
    """
    met = list[int]()

    def better(again: Any, limit: int, free: Any, n: int, finish: Any) -> Any:
        assert again.n == n
        assert again.is_one_of_several
        assert again.told == ([(again.proven, PROOF)] if n == 2 and not is_over else [])
        met.append(n)
        return replace(finish, objective=least, winner=n) if n == 2 else finish

    monkeypatch.setattr(recompute, "_better", better)
    before = RaceResult[Any](0, object(), 2.0, (1.0,) * 3, (False,) * 3)
    found, tried = recompute.or_recomputed(three(is_over), before, [()] * 3, 0.05)
    assert met == searched
    assert tried == tuple(sorted(searched))
    assert found.bounds == (1.8, 1.5, 1.1)
    assert (found.winner, found.objective) == (2, least)


@pytest.mark.parametrize(
    ("peaks", "is_over", "searched"),
    [
        ((7, 5, 9), False, [(0, True), (1, True), (2, True), (1, False)]),
        ((7, None, 9), False, [(0, True), (1, True), (2, True), (0, False)]),
        ((7, 5, 9), True, [(0, True), (1, True), (2, True)]),
        ((None, None, None), False, [(0, True), (1, True), (2, False)]),
    ],
)
def test_where_nothing_is_met_one_mesh_is_looked_into_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
    three: Callable[[bool], list[Any]],
    peaks: tuple[int | None, ...],
    is_over: bool,
    searched: list[tuple[int, bool]],
) -> None:
    """That of the smallest program; not where it is proven (None) that nothing fits."""
    met = list[tuple[int, bool]]()

    def better(again: Any, limit: int, free: Any, n: int, finish: Any) -> Any:
        met.append((n, again.is_one_of_several))
        if not again.is_one_of_several:
            return replace(finish, objective=2.0, winner=n, found=object())
        peak = peaks[n]
        told = NoFeasiblePlan("none") if peak is None else Unsolved("none is met", peak)
        return replace(finish, misfits=(*finish.misfits, told))

    monkeypatch.setattr(recompute, "_better", better)
    before = RaceResult[Any](None, None, inf, (1.0,) * 3, (False,) * 3)
    found, tried = recompute.or_recomputed(three(is_over), before, [()] * 3, 0.05)
    assert met == searched
    assert tried == (0, 1, 2)
    assert (found.found is None) is met[-1][1]
