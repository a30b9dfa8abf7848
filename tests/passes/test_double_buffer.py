"""Double buffering: collectives a round ahead or behind change no value, and make steps shorter where memory allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.api.plan import Plan
from autopar.core.graph import OpNode, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.plan import DoubleBuffered
from autopar.core.program import Compute, Move, ShardedProgram
from autopar.core.strategy import Strategy
from autopar.emit.local.localize import localize
from autopar.errors import PlanFileError
from autopar.memory.account import lives_of
from autopar.passes import pipeline
from autopar.passes.bucket_rounds import BucketRounds
from autopar.passes.double_buffer import (
    Prices,
    double_buffered,
    in_flight_bytes,
    largest_in_flight,
    most_buffered,
)
from autopar.passes.rounds import Rounds
from autopar.passes.verify import verify
from autopar.report.summary import step_time_s
from autopar.search.double_buffering import with_double_buffers
from autopar.search.limited_solve import lives_in
from autopar.search.search import restore
from autopar.search.task import Planned
from tests.equivalence.cases import MESHES, Case, assert_equal, with_permutes
from tests.equivalence.check import run
from tests.equivalence.draw import local_plan

LAYERS, WIDTH, HIDDEN, ROWS = 3, 32, 64, 1024
LIMIT = "250 KiB"
"""Room for the stacks gathered in rounds of the backward pass, not before."""
Params = dict[str, jax.Array]


def step(params: Params, x: jax.Array, y: jax.Array) -> tuple[Params, jax.Array]:
    """A step of gradient descent of scanned layers, recomputed in the backward pass."""

    @jax.checkpoint
    def layer(h: jax.Array, w: Params) -> jax.Array:
        return h + jnp.tanh(h @ w["up"]) @ w["down"]

    def loss(params: Params) -> jax.Array:
        h, _ = jax.lax.scan(lambda h, w: (layer(h, w), None), x, params)
        return ((h - y) ** 2).sum()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), value


def arguments() -> tuple[Any, ...]:
    """Parameters and data."""
    keys = jax.random.split(jax.random.key(0), 4)
    up = 0.1 * jax.random.normal(keys[0], (LAYERS, WIDTH, HIDDEN))
    down = 0.1 * jax.random.normal(keys[1], (LAYERS, HIDDEN, WIDTH))
    x, y = (jax.random.normal(key, (ROWS, WIDTH)) for key in keys[2:])
    return {"up": up, "down": down}, x, y


@pytest.fixture(scope="module", autouse=True)
def one_by_one() -> Iterator[None]:
    """Rounds communicate one by one, in no buckets, so that there is more than one collective of a kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "BucketRounds", partial(BucketRounds, most_bytes=1))
        yield


def planned(limit: str) -> Plan:
    """Parameters split over the devices and gathered in every round, as the batch is split too."""
    pins = [
        autopar.pin("params['up']", P(None, None, "x")),
        autopar.pin("params['down']", P(None, "x", None)),
        autopar.pin("x", P("x")),
    ]
    return autopar.plan(
        step,
        *arguments(),
        cluster="8xh100",
        mesh={"x": 8},
        constraints=pins,
        memory_limit_bytes=limit,
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Within the limit of these tests."""
    return planned(LIMIT)


def buffered(plan: Plan, *chosen: DoubleBuffered) -> Plan:
    """The plan with so many collectives ahead and behind."""
    planned = plan.bound.planned
    stated = replace(planned, plan=replace(planned.plan, double_buffered=chosen))
    return Plan.of(replace(plan.bound, planned=stated))


def runs(program: ShardedProgram) -> float:
    """How often collectives run in a step."""
    return sum(program.runs(move) for move in program.collectives)


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("ahead", "behind"), [(2, 2), (1, 0), (0, 1)])
def test_no_value_changes(plan: Plan, ahead: int, behind: int) -> None:
    (most,) = most_buffered(plan.bound.planned.program)
    found = buffered(plan, DoubleBuffered(most.region, ahead, behind))
    verify(found.program())
    wanted = jax.jit(step)(*arguments())
    got = found.compile()(*arguments())
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-6), got, wanted)


def test_each_collective_runs_once_more(plan: Plan) -> None:
    (most,) = most_buffered(plan.bound.planned.program)
    before = runs(plan.bound.planned.program)
    assert (most.ahead, most.behind) == (2, 2)
    after = runs(buffered(plan, most).program())
    assert after == before + most.ahead + most.behind


def test_what_runs_ahead_is_gathered_for_the_next_round(plan: Plan) -> None:
    (most,) = most_buffered(plan.bound.planned.program)
    program = buffered(plan, most).program()
    kinds = [i.op.kind for i in program.instructions if not isinstance(i, Move)]
    around = ("scan_first", "scan_start", "scan_last")
    assert [kinds.count(kind) for kind in around] == [2, 2, 2]
    sent = [i for i in program.instructions if isinstance(i, Move) and i.is_collective]
    inside = {move.kind for move in sent if program.tree.path(move.region)}
    assert inside == {"all_gather", "all_reduce"}


def copies(program: ShardedProgram) -> int:
    """How many values are copied into their carries."""
    moves = [i for i in program.instructions if isinstance(i, Move)]
    return sum(move.reason == "carried into the next round" for move in moves)


def test_a_carry_is_copied_unless_its_memory_is_free(plan: Plan) -> None:
    """What is gathered is read until the next is there; what is reduced in front of its maker has been read by then."""
    program = plan.bound.planned.program
    (most,) = most_buffered(program)
    for op_s, behind in ((0.0, 2), (1.0, 0)):
        prices = Prices(lambda *_: 0.0, lambda *_, seconds=op_s: seconds)
        for chosen, count in ((most._replace(behind=0), 2), (most._replace(ahead=0), behind)):
            found = double_buffered(program, (chosen,), prices)
            verify(found)
            assert copies(found) == count


def test_in_flight_are_operands_and_a_copy_of_the_larger_side(plan: Plan) -> None:
    program = plan.bound.planned.program
    (most,) = most_buffered(program)
    whole = WIDTH * HIDDEN * 4
    gathered = whole + whole // 8
    for chosen, held in (
        (most, 2 * gathered + 4 * whole),
        (most._replace(ahead=1, behind=0), gathered),
        (most._replace(ahead=0, behind=1), 2 * whole),
    ):
        assert in_flight_bytes(program, (chosen,)) == held
    assert in_flight_bytes(program, ()) == 0
    assert largest_in_flight(program) == 3 * whole


def test_a_file_keeps_it(plan: Plan, tmp_path: Any) -> None:
    (most,) = most_buffered(plan.bound.planned.program)
    found = buffered(plan, most)
    found.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    again = loaded.compile(step).plan(*arguments())
    assert again.record.double_buffered == (most,)
    assert again.program().instructions[-1] == found.program().instructions[-1]
    assert str(again.program()) == str(found.program())


def test_a_damaged_file_is_refused(plan: Plan) -> None:
    planned = plan.bound.planned
    (most,) = most_buffered(planned.program)
    for stated in ((most._replace(ahead=3),), (most, most), (most._replace(region=0),)):
        broken = replace(planned.plan, double_buffered=stated)
        with pytest.raises(PlanFileError, match="a round ahead"):
            restore(planned.task, broken)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_first_and_the_last_round_are_those_of_the_scan(reverse: bool) -> None:
    stack = TensorInfo(0, (3, 2), "float32", 4)
    row = TensorInfo(1, (2,), "float32", 4)
    scan = {"length": 3, "reverse": reverse}
    whole = {tensor: Placement(((),) * tensor.ndim) for tensor in (stack, row)}

    def run(kind: str, ins: tuple[TensorInfo, ...], out: TensorInfo, *values: Any) -> Any:
        op = OpNode(0, kind, ins, (out,), payload=scan)
        strategy = Strategy(tuple(whole[tensor] for tensor in ins), (whole[out],))
        return localize(op, strategy, DeviceMesh((("x", 1),)))(*values)[0]

    values = jnp.arange(6.0).reshape(3, 2)
    first, last = (2, 0) if reverse else (0, 2)
    np.testing.assert_array_equal(run("scan_first", (stack,), row, values), values[first])
    np.testing.assert_array_equal(run("scan_start", (), row), jnp.zeros(2))
    filled = run("scan_last", (stack, row), stack, values, jnp.full(2, 9.0))
    np.testing.assert_array_equal(filled, values.at[last].set(9.0))


def test_what_is_carried_lies_in_memory_and_stacks_lie_once(plan: Plan) -> None:
    """Even if its reader would make it as it reads; the last slice is written into the stack of the others."""
    (most,) = most_buffered(plan.bound.planned.program)
    found = buffered(plan, most).bound.emitted
    program = found.program
    size = lives_of(program, frozenset()).size
    carries = [v for i in of_kind(program, "carry_in") for v in i.outs]
    assert all(size[v] == program.local_bytes(v) for v in carries)

    lives = lives_in(found.graph, program, found.pricing)
    alive = dict(zip(lives.values.tolist(), zip(lives.start, lives.stop, strict=True), strict=True))
    for last in of_kind(program, "scan_last"):
        assert alive[last.ins[0]][1] <= alive[last.outs[0]][0]


def layers_read_in_many_ways(weights: Any, ids: Any, x: Any) -> Any:
    """Slices are read as they are, in another type and as a view; sums of them exchange what they read; some stay."""

    def layer(h: Any, given: tuple[Any, Any]) -> Any:
        w, n = given
        narrow = w.astype(jnp.float32)
        h = jnp.tanh(h @ w + h @ narrow.astype(w.dtype))
        return h, (narrow.T, jnp.cumsum(n), jnp.cumsum(w, 0), h.T @ h, h[:8] + w)

    return jax.lax.scan(layer, x, (weights, ids), reverse=True)


@pytest.fixture(scope="module")
def many_ways() -> Case:
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(3, 8, 8))
    x = draw.normal(size=(16, 8))
    return Case(layers_read_in_many_ways, (weights, draw.integers(0, 9, (3, 16)), x), "float64")


def drawn_programs(case: Case, mesh: str, seed: int) -> list[ShardedProgram]:
    """That of a drawn plan, and with some of its collectives a round ahead and behind: of both all, then one each."""
    program = case.program(local_plan(case, case.space(MESHES[mesh]), seed, 0.8))
    prices = Prices(with_permutes, lambda *_: 1e-7 * (seed % 2))
    (most,) = most_buffered(program) or (DoubleBuffered(0, 0, 0),)
    chosen = (most, one_each(most))
    return [program, *(double_buffered(program, (one,), prices) for one in chosen)]


def one_each(most: DoubleBuffered) -> DoubleBuffered:
    """One ahead and one behind, if there are any."""
    return most._replace(ahead=min(most.ahead, 1), behind=min(most.behind, 1))


def test_collectives_of_any_plan_may_be_of_another_round(many_ways: Case) -> None:
    """So many as are chosen run once more, those first that are needed first."""
    buffered = 0
    for seed in range(8):
        program, every, few = drawn_programs(many_ways, "2x2x2", seed)
        for most in most_buffered(program):
            for other, chosen in ((every, most), (few, one_each(most))):
                verify(other)
                assert runs(other) == runs(program) + chosen.ahead + chosen.behind
                buffered += 1

            rounds = Rounds(program, program.tree[most.region])
            readers = [rounds.reading(n) for n in rounds.ahead]
            needed = [min(at) for at in readers if rounds.early.isdisjoint(at)]
            assert needed == sorted(needed)
    assert buffered >= 12


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["8", "2x4"])
def test_values_of_any_plan_stay(many_ways: Case, mesh: str) -> None:
    for seed in range(6):
        for program in drawn_programs(many_ways, mesh, seed)[1:]:
            found, _ = run(many_ways, program)
            assert_equal(many_ways.expected, found, "float64")


def of_kind(program: ShardedProgram, kind: str) -> list[Compute]:
    """The operators of a kind."""
    return [i for i in program.instructions if isinstance(i, Compute) and i.op.kind == kind]


def scheduled(seconds: dict[tuple[int, int], float], exposed_s: float, plan: Plan) -> Planned:
    """What is chosen where a step takes so long by what runs ahead and behind, 2 % less with room for a collective."""
    raw = plan.bound.planned
    planned = replace(raw, task=replace(raw.task, memory_limit_bytes=None))
    (most,) = most_buffered(raw.program)

    def schedule(tried: Planned) -> Any:
        chosen = tried.plan.double_buffered or (DoubleBuffered(most.region, 0, 0),)
        flying = in_flight_bytes(raw.program, chosen)
        has_room = tried.plan.in_flight_bytes > flying
        taken_s = seconds[chosen[0].ahead, chosen[0].behind] - 0.02 * has_room
        event = SimpleNamespace(communicates=True, region=most.region, weight_s=exposed_s)
        return SimpleNamespace(makespan_s=taken_s, events=[event])

    return with_double_buffers(planned, schedule)


@pytest.mark.parametrize(("last_s", "ahead"), [(0.85, 2), (0.8992, 0)])
def test_what_saves_a_thousandth_of_a_step_is_taken(plan: Plan, last_s: float, ahead: int) -> None:
    """What runs behind is chosen first, then what runs ahead of that."""
    seconds = {(0, 0): 1.0, (0, 1): 0.9, (0, 2): 0.95, (1, 1): 0.8995, (2, 1): last_s}
    found = scheduled(seconds, 0.1, plan)
    (chosen,) = found.plan.double_buffered or ()
    assert (chosen.ahead, chosen.behind) == (ahead, 1)
    room = largest_in_flight(plan.bound.planned.program)
    flying = in_flight_bytes(plan.bound.planned.program, (chosen,))
    assert found.plan.in_flight_bytes == found.account.in_flight_bytes == room + flying


def test_loops_that_expose_less_are_left_as_they_are(plan: Plan) -> None:
    assert scheduled({(0, 0): 1.0}, 5e-4, plan).plan.double_buffered is None


def one_product(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step of layers of one product each: beside its gather there is nothing to compute in its own round."""

    def loss(weights: jax.Array) -> jax.Array:
        h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)
        return (h**2).sum()

    value, grads = jax.value_and_grad(loss)(weights)
    return weights - 1e-3 * grads, value


def test_a_step_is_shorter_and_takes_the_memory_it_says() -> None:
    weights = jax.ShapeDtypeStruct((32, 4096, 4096), jnp.float32)
    data = jax.ShapeDtypeStruct((2**15, 4096), jnp.float32)
    pins = [autopar.pin("weights", P(None, None, "x")), autopar.pin("x", P("x"))]
    options = {"cluster": "8xh100", "mesh": {"x": 8}, "memory_limit_bytes": "4 GiB"}
    plan = autopar.plan(one_product, weights, data, constraints=pins, **options)
    raw = plan.bound.planned
    emitted = plan.bound.emitted
    assert emitted.plan.double_buffered
    assert plan.summary.step_time_s < 0.98 * step_time_s(raw, plan.bound.priced_for)
    assert plan.summary.peak_memory_bytes == emitted.account.peak_memory_bytes
    assert raw.account.peak_memory_bytes < emitted.account.peak_memory_bytes <= 4 << 30

    tight = replace(raw, task=replace(raw.task, memory_limit_bytes=raw.account.peak_memory_bytes))
    assert replace(plan.bound, planned=tight).emitted.plan.double_buffered is None
