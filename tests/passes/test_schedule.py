"""schedule: programs on two streams. What may run beside what, within which memory, and how long that takes."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import Compute, Move, ShardedProgram
from autopar.core.regions import Region
from autopar.core.strategy import Strategy
from autopar.memory.account import Account
from autopar.passes.fuse_collectives import FuseCollectives
from autopar.passes.issue_order import in_issue_order
from autopar.passes.pipeline import build_program
from autopar.passes.schedule import Event, StepSchedule, schedule
from autopar.redistribute.route import Router
from cost_models import Overlap
from tests.equivalence.draw import uniform_plan
from tests.equivalence.loops import LOOPS, loop_case
from tests.passes.build import SPLIT, WHOLE, Builder, account, price, programs

PARTIAL = Placement(((),), ("x",))
CAST = "convert_element_type"
FREE = Overlap(1.0, 1.0)
SLOWED = Overlap(1.2, 1.3)
MESH = DeviceMesh.of({"x": 2, "y": 4})
ROOM = 10**9


def cost(op: OpNode, _strategy: Strategy) -> float:
    return 1e-8 * (1 + op.id % 3)


def accounted(program: ShardedProgram) -> Account:
    return account(program, cost, {v.tensor.id for v in program.values.values()})


def of(program: ShardedProgram, value: int, step: StepSchedule) -> Event:
    return next(event for event in step.events if value in event.instruction.outs)


def bytes_beside(program: ShardedProgram, step: StepSchedule, compute: Event) -> int:
    """What collectives that are ahead of their place, or behind it, hold while `compute` runs."""
    order = {id(i): n for n, i in enumerate(program.instructions)}
    place = order[id(compute.instruction)]
    total = 0
    for event in step.events:
        move = event.instruction
        if not isinstance(move, Move) or not move.is_collective:
            continue
        here = order[id(move)]
        if here > place and event.start_s < compute.end_s:
            total += sum(program.local_bytes(v) for v in move.outs if v not in program.outputs)
        if here < place and event.end_s > compute.start_s and move.kind != "all_reduce":
            total += sum(program.local_bytes(v) for v in move.ins if v not in program.inputs)
    return total


@settings(max_examples=150, deadline=None)
@given(programs(), st.booleans(), st.sampled_from([FREE, SLOWED, Overlap(2.0, 3.0)]))
def test_random_programs(program: ShardedProgram, fuse: bool, overlap: Overlap) -> None:
    program = FuseCollectives(price).apply(program) if fuse else program
    spent = accounted(program)
    step = schedule(program, cost, overlap, spent.held_bytes)
    serial = spent.serial_time_s
    assert max(spent.compute_time_s, spent.communication_time_s) <= step.makespan_s * (1 + 1e-12)
    assert step.makespan_s <= serial * (1 + 1e-12)
    assert sum(event.weight_s for event in step.events) == pytest.approx(step.makespan_s)
    assert [e.instruction for e in step.events] == list(program.instructions)
    made = {value: event for event in step.events for value in event.instruction.outs}
    for event in step.events:
        for value in event.instruction.ins:
            assert value not in made or made[value].end_s <= event.start_s
    ordered, held_bytes = in_issue_order(program, spent.held_bytes)
    held = dict(zip(map(id, ordered.instructions), held_bytes, strict=True))
    for event in step.events:
        if not event.communicates and event.end_s > event.start_s:
            here = held[id(event.instruction)] + bytes_beside(ordered, step, event)
            assert here <= spent.peak_memory_bytes


@settings(max_examples=100, deadline=None)
@given(programs())
def test_what_is_issued_early_finds_its_operands_and_room(program: ShardedProgram) -> None:
    spent = accounted(program)
    ordered, held = in_issue_order(program, spent.held_bytes)
    assert Counter(map(id, ordered.instructions)) == Counter(map(id, program.instructions))
    made = {*program.inputs}
    for instruction in ordered.instructions:
        assert made.issuperset(v for v in instruction.ins if v not in program.inputs)
        made.update(instruction.outs)
    assert max(held, default=0) <= spent.peak_memory_bytes
    assert accounted(ordered).peak_memory_bytes <= spent.peak_memory_bytes


@settings(max_examples=60, deadline=None)
@given(programs())
def test_without_overlap_or_room_one_runs_after_the_other(program: ShardedProgram) -> None:
    spent = accounted(program)
    assert schedule(program, cost, None, spent.held_bytes).makespan_s == pytest.approx(
        spent.serial_time_s
    )
    assert schedule(program, cost, Overlap(2.0, 2.0), spent.held_bytes).makespan_s == pytest.approx(
        spent.serial_time_s
    )
    assert schedule(program, cost, FREE).makespan_s == pytest.approx(spent.serial_time_s)


def test_a_gradient_is_reduced_behind_the_backward_pass() -> None:
    build = Builder()
    rows = build.input(SPLIT)
    gradient = build.compute([rows], PARTIAL, phase="backward")
    reduced = build.all_reduce(gradient, role="mirror")
    rest = build.compute([rows], SPLIT, phase="backward")
    for _ in range(200):
        rest = build.compute([rest], SPLIT, phase="backward")
    update = build.compute([reduced], phase="update")
    program = build.program([update, rest])
    spent = accounted(program)
    step = schedule(program, cost, FREE, spent.held_bytes)
    assert step.makespan_s == pytest.approx(spent.compute_time_s)
    reducing = of(program, reduced, step)
    assert reducing.start_s == of(program, gradient, step).end_s
    assert reducing.weight_s == 0
    slowed = schedule(program, cost, SLOWED, spent.held_bytes)
    assert slowed.makespan_s == pytest.approx(
        spent.compute_time_s + reducing.time_s * 1.3 * (1 - 1 / 1.2)
    )


def updating(last_first: bool) -> tuple[Builder, list[int]]:
    """Two gradients, each reduced and read by an update of its own; the updates in this order."""
    build = Builder()
    rows = build.input(SPLIT)
    gradients = [build.compute([rows], PARTIAL, phase="backward") for _ in range(2)]
    reduced = [build.all_reduce(gradient, role="mirror") for gradient in gradients]
    halves = [
        build.compute([value], phase="update") for value in reduced[:: -1 if last_first else 1]
    ]
    return build, [build.compute([half], phase="update") for half in halves]


def test_what_is_reduced_first_is_updated_first() -> None:
    """The gradients 1 and 2 are reduced as 3 and 4; the second is read first, by 5 and then 7."""
    build, updated = updating(last_first=True)
    program = build.program(updated)
    spent = accounted(program)
    ordered, held = in_issue_order(program, spent.held_bytes)
    assert [one.outs[0] for one in ordered.instructions[-6:]] == [3, 4, 6, 8, 5, 7]
    assert max(held) == spent.peak_memory_bytes

    step = schedule(program, cost, FREE, spent.held_bytes)
    assert of(program, 6, step).end_s <= of(program, 4, step).end_s

    build, updated = updating(last_first=False)
    program = build.program(updated)
    ordered, _ = in_issue_order(program, accounted(program).held_bytes)
    assert [one.outs[0] for one in ordered.instructions[-6:]] == [3, 4, 5, 7, 6, 8]


def test_a_gradient_that_is_turned_before_it_is_reduced_comes_as_others_do() -> None:
    """The last product of a backward pass is transposed where the update begins: it is the last that is reduced."""
    build = Builder()
    rows = build.input(SPLIT)
    early = build.all_reduce(build.compute([rows], PARTIAL, phase="backward"), role="mirror")
    late = build.compute([rows], PARTIAL, phase="backward")
    turned = build.compute([late], PARTIAL, phase="backward", kind="transpose")
    reduced = build.all_reduce(turned, role="mirror")
    program = build.program([build.compute([v], phase="update") for v in (early, reduced)])
    ordered, _ = in_issue_order(program, accounted(program).held_bytes)
    assert [one.ins[0] for one in ordered.instructions[-2:]] == [early, reduced]


def test_an_update_with_effects_stays_in_its_place() -> None:
    build, updated = updating(last_first=True)
    build.compute([updated[-1]], phase="update", effect="ordered")
    program = build.program(updated)
    ordered, _ = in_issue_order(program, accounted(program).held_bytes)
    assert ordered is program


def test_an_update_keeps_its_order_where_another_needs_more_memory() -> None:
    """What is large of the update in front is a number behind it: it would stand beside the other gradient's."""
    build = Builder()
    rows = build.input(SPLIT)
    gradients = [build.compute([rows], PARTIAL, phase="backward") for _ in range(2)]
    first, last = (build.all_reduce(gradient, role="mirror") for gradient in gradients)
    large = build.compute([build.input()], phase="update", size=4096)
    small = build.compute([large, last], phase="update", size=1)
    wide = build.compute([first], phase="update", size=4096)
    program = build.program([build.compute([small]), build.compute([wide])])
    spent = accounted(program)
    ordered, held = in_issue_order(program, spent.held_bytes)
    assert max(held) == spent.peak_memory_bytes
    assert accounted(ordered).peak_memory_bytes <= spent.peak_memory_bytes


def gathering(count: int, size: int) -> tuple[Builder, list[int], int]:
    """Layers that each gather a weight of their own right before they use it; the gathered weights."""
    build = Builder()
    weights = [build.input(SPLIT, size=size) for _ in range(count)]
    rows = build.input()
    gathered: list[int] = []
    for weight in weights:
        gathered.append(build.all_gather(weight))
        for _ in range(400):
            rows = build.compute([rows, gathered[-1]])
    return build, gathered, rows


def test_a_weight_is_gathered_ahead_of_its_use_as_far_as_memory_allows() -> None:
    build, gathered, rows = gathering(4, 64)
    program = build.program([rows])
    spent = accounted(program)
    tight = schedule(program, cost, FREE, spent.held_bytes)
    wide = schedule(
        program, cost, FREE, [held - (ROOM if n else 0) for n, held in enumerate(spent.held_bytes)]
    )
    for before, value in pairwise(gathered):
        used = next(e for e in tight.events if value in e.instruction.ins)
        assert of(program, value, tight).start_s >= of(program, before, tight).end_s
        # ahead: hidden behind the layer before
        assert of(program, value, wide).end_s < used.start_s
    exposed = [of(program, value, wide).weight_s for value in gathered]
    assert exposed[0] > 0
    assert exposed[1:] == [0.0] * 3
    assert wide.makespan_s < tight.makespan_s


def test_a_scatter_holds_its_operand_until_it_has_ended() -> None:
    def step_of(room: int) -> StepSchedule:
        build = Builder()
        rows = build.input(SPLIT)
        part = build.reduce_scatter(build.compute([rows], PARTIAL, size=64), role="mirror")
        for _ in range(100):
            rows = build.compute([rows], SPLIT)
        program = build.program([part, rows])
        held = list(accounted(program).held_bytes)
        return schedule(program, cost, FREE, [max(held) + room, *held[1:]])

    assert step_of(ROOM).makespan_s < step_of(-ROOM).makespan_s


def test_exchanges_are_waited_for_on_the_spot() -> None:
    build = Builder()
    rows = build.input(SPLIT)
    out = build.compute([rows], SPLIT)
    last = build.compute([out], SPLIT)
    program = build.program([last])
    before = Move("permute", ("x",), (out,), (last,), 8, 5e-7, "exchange")
    behind = before._replace(ins=(last,), time_s=3e-7)
    first, second = (i for i in program.instructions if isinstance(i, Compute))
    program = program.with_instructions((first, second._replace(exchanges=(before, behind))))
    spent = accounted(program)
    step = schedule(program, cost, FREE, spent.held_bytes)
    assert step.makespan_s == pytest.approx(spent.serial_time_s)
    assert [e.communicates for e in step.events] == [False, True, False, True]


@cache
def looping(name: str, seed: int) -> ShardedProgram:
    found = loop_case(name, "float32")
    stage = uniform_plan(found.space(MESH), seed)
    return build_program(found.graph, found.flow, stage, Router(MESH, price), price)


@pytest.mark.parametrize("name", LOOPS)
def test_loops_and_branches_take_all_their_rounds(name: str) -> None:
    for seed in range(3):
        program = looping(name, seed)
        spent = accounted(program)
        for overlap in (None, FREE, SLOWED):
            step = schedule(program, cost, overlap, spent.held_bytes)
            assert step.makespan_s <= spent.serial_time_s * (1 + 1e-9)
            assert step.makespan_s >= max(spent.compute_time_s, spent.communication_time_s) * (
                1 - 1e-9
            )
            assert sum(event.weight_s for event in step.events) == pytest.approx(step.makespan_s)
            assert sum(event.runs * event.time_s for event in step.events) == pytest.approx(
                spent.serial_time_s
            )
            assert max(event.end_s for event in step.events) <= step.makespan_s * (1 + 1e-9)
        assert schedule(program, cost, None).makespan_s == pytest.approx(spent.serial_time_s)


def scanned(communicates: bool, rounds: float) -> tuple[ShardedProgram, int]:
    """A gradient, then a loop of two operators a round and, if it communicates, one all-reduce beside the second."""
    regions = (Region(0, "scan"), Region(1, "body", 0, rounds))
    build = Builder()
    rows = build.input(SPLIT)
    reduced = build.all_reduce(build.compute([rows], PARTIAL), role="mirror")
    part = build.compute([rows], PARTIAL if communicates else SPLIT, region=1)
    if communicates:
        build.all_reduce(part, region=1)
    build.compute([rows], SPLIT, region=1)
    return build.program([build.compute([reduced])], regions=regions), reduced


def test_each_round_hides_what_it_can() -> None:
    program, reduced = scanned(True, 12.0)
    spent = accounted(program)
    step = schedule(program, cost, FREE, spent.held_bytes)
    first, _, computing, inside, beside, last = step.events
    a_round = computing.time_s + max(inside.time_s, beside.time_s)
    before = first.time_s + of(program, reduced, step).time_s
    assert step.makespan_s == pytest.approx(before + 12 * a_round + last.time_s)
    assert inside.runs == 12.0
    (span,) = [span for span in step.spans if span.region == 1]
    assert (span.rounds, span.end_s - span.start_s) == (12.0, pytest.approx(12 * a_round))


def test_a_loop_that_only_computes_runs_beside_a_collective() -> None:
    program, _ = scanned(False, 1000.0)
    spent = accounted(program)
    assert schedule(program, cost, FREE, spent.held_bytes).makespan_s == pytest.approx(
        spent.compute_time_s
    )


def test_casts_beside_collectives_hold_neither_up() -> None:
    """A weight's shard is cast right before it is gathered, and a gradient's right after it is scattered."""

    def step_of(room: int) -> StepSchedule:
        build = Builder()
        weight = build.input(SPLIT)
        rows = build.input()
        for _ in range(400):
            rows = build.compute([rows])
        gathered = build.all_gather(build.compute([weight], SPLIT, kind=CAST))
        gradient = build.compute([rows, gathered], PARTIAL)
        scattered = build.compute([build.reduce_scatter(gradient)], SPLIT, kind=CAST)
        for _ in range(400):
            rows = build.compute([rows])
        updated = build.compute([weight, scattered], SPLIT)
        program = build.program([rows, updated])
        held = list(accounted(program).held_bytes)
        return schedule(program, cost, FREE, [max(held) + room, *held[1:]])

    assert step_of(ROOM).makespan_s == pytest.approx(
        sum(e.time_s for e in step_of(ROOM).events if not e.communicates)
    )
    assert step_of(-ROOM).makespan_s == pytest.approx(sum(e.time_s for e in step_of(-ROOM).events))


def test_a_chain_of_collectives_holds_nothing_up() -> None:
    """Of a weight that is gathered in two steps the second waits for the first, and no operator but its reader does."""
    build = Builder()
    weight = build.input(Placement((("x", "y"),)), size=1024)
    rows = build.input()
    for _ in range(2000):
        rows = build.compute([rows])
    half = build.move("all_gather", ("y",), weight, SPLIT, dim=0)
    whole = build.move("all_gather", ("x",), half, WHOLE, dim=0)
    rows = build.compute([rows, whole])
    gradient = build.reduce_scatter(build.compute([rows], PARTIAL, size=1024))
    moved = build.move("all_gather", ("x",), gradient, WHOLE, dim=0)
    for _ in range(2000):
        rows = build.compute([rows])
    program = build.program([rows, moved])
    held = list(accounted(program).held_bytes)
    step = schedule(program, cost, FREE, [max(held) + 8 * ROOM, *held[1:]])
    assert of(program, half, step).end_s <= of(program, whole, step).start_s
    assert of(program, gradient, step).end_s <= of(program, moved, step).start_s
    computing = sum(event.time_s for event in step.events if not event.communicates)
    assert step.makespan_s == pytest.approx(computing)


def test_a_chain_keeps_its_order_where_memory_has_its_end_come_soon() -> None:
    """There is no room to hold what the second reads: it is not sent before the first, which needs none, for that."""
    build = Builder()
    rows = build.input()
    long = build.all_reduce(build.compute([rows], PARTIAL, size=4096))
    part = build.compute([rows], Placement((("x",),), ("y",), "sum"))
    summed = build.move("all_reduce", ("y",), part, SPLIT)
    whole = build.move("all_gather", ("x",), summed, WHOLE, dim=0)
    for _ in range(100):
        rows = build.compute([rows])
    program = build.program([build.compute([rows, whole]), long])
    step = schedule(program, cost, FREE, [1000] * len(program.instructions))
    assert of(program, long, step).end_s <= of(program, summed, step).start_s
    assert of(program, summed, step).end_s <= of(program, whole, step).start_s


def test_what_is_needed_first_is_sent_first() -> None:
    """Of two that wait while a third is sent, a gradient for the end gives way to the operand of the next operator."""
    build = Builder()
    rows = build.input()
    first = build.all_reduce(build.compute([rows], PARTIAL, size=4096))
    last = build.all_reduce(build.compute([rows], PARTIAL, size=1024))
    gathered = build.all_gather(build.compute([rows], SPLIT))
    for _ in range(1000):
        rows = build.compute([rows])
    rows = build.compute([rows, gathered])
    for _ in range(1000):
        rows = build.compute([rows])
    program = build.program([rows, first, last])
    held = list(accounted(program).held_bytes)
    step = schedule(program, cost, FREE, [max(held) + ROOM, *held[1:]])
    assert of(program, first, step).end_s <= of(program, gathered, step).start_s
    assert of(program, gathered, step).end_s <= of(program, last, step).start_s


def test_what_is_issued_early_shares_the_room_that_there_is() -> None:
    """There is room for the cast of one shard beside what the rows hold, not for that of two."""
    build = Builder()
    weights = [build.input(SPLIT, size=64) for _ in range(2)]
    rows = build.input()
    for _ in range(3):
        rows = build.compute([rows])
    casts = [build.compute([w], SPLIT, kind=CAST, size=64) for w in weights]
    for value in casts:
        rows = build.compute([rows, build.all_gather(value)])
    program = build.program([rows])
    shard = program.local_bytes(casts[0])
    held = [1000 - shard] * 3 + [0] * (len(program.instructions) - 4) + [1000]
    ordered, now = in_issue_order(program, held)
    places = {one.outs: place for place, one in enumerate(ordered.instructions)}
    assert [places[value,] for value in casts] == [0, 4]  # behind all rows: it finds no room before
    assert max(now) == 1000
