"""Summary: a plan and its program as a typed Report of plain values, for rendering, for files and for questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import Compute, Instruction, Move, ShardedProgram
from autopar.core.stages import Stages
from autopar.ops.rules.kernels import has_no_price
from autopar.passes.schedule import StepSchedule, schedule
from autopar.report.blocks import BlockRow, block_rows
from autopar.report.donation import Donation, donation
from autopar.report.errors import ErrorShare, error_shares, standard_error_s
from autopar.report.layout import facts_of
from autopar.report.parallelism import Parallelism, parallelism
from autopar.report.placements import ON_HOST
from autopar.report.step import Step
from autopar.report.throughput import Throughput, throughput
from autopar.report.units import format_quantity
from autopar.search.constraints.carried import CarriedGroup, carried_groups
from autopar.search.dims import is_again, origins
from autopar.search.task import Planned
from cost_models import Cluster

_ROUNDING = 1e-9
_PEAK_KINDS = 10
_PEAK_ROWS = 1000
"""Of what is held at the peak: how many kinds and how many tensors are listed."""


@dataclass(frozen=True)
class TensorRow:
    """An input or output: its path, global shape, placement as text, and bytes on one device."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    placement: str
    local_bytes: int


@dataclass(frozen=True)
class OperatorRow:
    """An operator: where it stands, the placements of its operands and results, and one device's time of one run.

    A "local slice" or "local mask" is what a device takes of what it holds, for the operator at `source`.
    `runs` is how often it runs in a step, on average: more than once in a loop.
    """

    kind: str
    source: str
    scope: str
    phase: str
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    split: int
    time_s: float
    runs: float = 1.0


@dataclass(frozen=True)
class CollectiveRow:
    """A collective of the program: over which axes, how many bytes a device holds of it, what it costs and why.

    `tensors` says what it moves: an input's path, or what made it; `inputs` are the paths of the inputs among them,
    also of those that were cast, reshaped or transposed before. Bytes and seconds are those of one run; `runs` is how
    often it runs in a step, on average: more than once in a loop. `exposed_s` is how much longer all its runs make
    the step: less than `runs` x `time_s` where it is hidden behind computing; None if that is not known.
    """

    kind: str
    axes: tuple[str, ...]
    size_bytes: int
    time_s: float
    role: str
    source: str
    reason: str
    tensors: tuple[str, ...]
    runs: float = 1.0
    exposed_s: float | None = None
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class UseRow:
    """How an operator reads an input: by its path, in which type, and how that lies where it is read.

    An input that is cast, reshaped or transposed is followed: its readers are those that compute with it.
    """

    input: str
    kind: str
    source: str
    phase: str
    dtype: str
    placement: str


@dataclass(frozen=True)
class Recomputation:
    """What a step computes once more rather than keep it: how many operators, their time in a step, and what they save.

    `saved_bytes` are those of the results that would lie in memory until the backward pass; an operator that merely
    runs later costs nothing more.
    """

    operators: int
    time_s: float
    saved_bytes: int


@dataclass(frozen=True, repr=False)
class Report:
    """What a plan says. Times are seconds a step under the plan's pricing, bytes are of one device.

    `objective_s` is the sum the solver minimised, `lower_bound_s` proven for it over `space`; both know nothing of
    overlap. `step_time_s` is how long the emitted program takes with what it computes and what it communicates side by
    side; `compute_time_s` and `communication_time_s` are what these take alone, `serial_time_s` their sum. `errors` are
    what the uncertainty of the step time is due to; () if not known. `peak` names what is alive at the peak of memory,
    largest first. `found_rules` are operators whose rules were found by trial: their kind and the source line of the
    first. Operators that run again have the phase "recompute"; `recomputation` sums them up, if there are any.
    `stopped` says what ended the search
    before its end ("" if nothing did): another run may then find another plan. `carried` are the results that keep the
    placements of inputs, `carry_time_s` is what a step spends on moving them there once they are made.
    `unpriced` are operators of which nothing but operands and results is known: their kind and source line.
    `padding` are sizes of dims that are longer inside, with what they become there; `padding_time_s` is what computing
    what was added takes. `loop_parts` is in how many parts loops over samples go on side by side, 1 if none does.
    `stages` says how layers are divided among pipeline stages; None if they are not. `communication_weight` is what a
    second of communicating counts in the objective, `hidden_weight` what one of gathering parameters or reducing
    gradients does beside that. `parallelism` is the plan in the field's words, `throughput` what goes into a step,
    `blocks` what runs in it, layers folded, `uses` who reads inputs, `donation` what donating more would save.
    `step_bound_s` is proven for `step_time_s` over `space`; 0: nothing is. `step` is what runs as a graph and in time,
    and what is held meanwhile, made for pages and files alone. None and nothing in files of older versions.
    """

    function: str
    cluster: str
    mesh: tuple[tuple[str, int], ...]
    space: str
    objective_s: float
    lower_bound_s: float
    gap: float
    step_time_s: float
    compute_time_s: float
    communication_time_s: float
    peak_memory_bytes: int
    memory_limit_bytes: int | None
    inputs: tuple[TensorRow, ...]
    outputs: tuple[TensorRow, ...]
    operators: tuple[OperatorRow, ...]
    collectives: tuple[CollectiveRow, ...]
    peak: tuple[TensorRow, ...]
    found_rules: tuple[str, ...] = ()
    recomputation: Recomputation | None = None
    stopped: str = ""
    errors: tuple[ErrorShare, ...] = ()
    carried: tuple[CarriedGroup, ...] = ()
    carry_time_s: float = 0.0
    unpriced: tuple[str, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    padding_time_s: float = 0.0
    loop_parts: int = 1
    stages: Stages | None = None
    communication_weight: float = 1.0
    parallelism: Parallelism | None = None
    throughput: Throughput = field(default_factory=Throughput)
    blocks: tuple[BlockRow, ...] = ()
    uses: tuple[UseRow, ...] = ()
    hidden_weight: float = 1.0
    step: Step | None = None
    donation: Donation | None = None
    step_bound_s: float = 0.0

    def __repr__(self) -> str:
        return f"Report({self.in_short})"

    def _repr_html_(self) -> str:
        from autopar.report.notebook import report_html  # late: what renders reads this record

        return report_html(self)

    @property
    def in_short(self) -> str:
        """The plan in a line: function, mesh, seconds of a step, peak and gap."""
        mesh = " x ".join(f"{name}={size}" for name, size in self.mesh)
        figures = (
            f"{format_quantity(self.step_time_s, 'time')} a step",
            f"peak {format_quantity(self.peak_memory_bytes, 'bytes')}",
            f"gap {format_quantity(self.gap, 'percent')}",
        )
        return f"{self.function} on {self.cluster}, {mesh}: {', '.join(figures)}"

    @property
    def step_gap(self) -> float:
        """(step time - its bound) / step time; 1 where nothing is known of the steps of other plans."""
        return max(0.0, 1 - self.step_bound_s / self.step_time_s) if self.step_time_s else 0.0

    @property
    def serial_time_s(self) -> float:
        """What the emitted program takes if nothing overlaps."""
        return self.compute_time_s + self.communication_time_s

    @property
    def hidden_time_s(self) -> float:
        """What overlap saves; nothing if it is no more than rounding."""
        saved = self.serial_time_s - self.step_time_s
        return saved if saved > _ROUNDING * self.serial_time_s else 0.0

    @property
    def exposed_time_s(self) -> float:
        """What communication adds to the step: all of it but what is hidden behind computing."""
        return self.communication_time_s - self.hidden_time_s

    @property
    def utilisation(self) -> float | None:
        """MFU: the share of the step for which products at the devices' peak would do; None where no peak is known."""
        ideal_s = self.throughput.ideal_time_s
        return ideal_s / self.step_time_s if ideal_s and self.step_time_s else None

    @property
    def step_error_s(self) -> float | None:
        """One standard error of `step_time_s`; None if it is not known."""
        return standard_error_s(self.errors) if self.errors else None


def step_schedule(planned: Planned, overlapping: Cluster | None) -> StepSchedule:
    """The step of `planned` on two streams, as `overlapping` says; None: one after the other."""
    overlap = None if overlapping is None else overlapping.device.overlap
    spent = planned.account
    return schedule(
        planned.program, planned.pricing.op_cost, overlap, spent.held_bytes, spent.in_flight_bytes
    )


def step_time_s(planned: Planned, priced_for: Cluster | None) -> float:
    """Seconds that a step of `planned` takes, overlapping as `priced_for` says; None: not at all."""
    return min(step_schedule(planned, priced_for).makespan_s, planned.account.serial_time_s)


def summarise(
    planned: Planned,
    *,
    function: str,
    cluster: str,
    memory_limit_bytes: int | None,
    found_rules: tuple[str, ...],
    priced_for: Cluster | None,
) -> Report:
    """The Report of `planned`; `function` and `cluster` are names to show, `found_rules` as in Report.

    `priced_for` is the cluster whose roofline `planned` is priced by; with another pricing nothing is known of overlap
    and errors.
    """
    plan = planned.plan
    program = planned.program
    spent = planned.account
    step = step_schedule(planned, priced_for)
    exposed = {
        id(event.instruction): float(event.weight_s) for event in step.events if event.communicates
    }
    stage = plan.stage
    graph = planned.graph
    known = origins(graph)

    def row(value: int) -> TensorRow:
        v = program.values[value]
        return TensorRow(
            _label(planned, v.tensor),
            v.tensor.shape,
            v.tensor.dtype,
            _where(v.tensor, v.placement),
            program.device_bytes(value),
        )

    return Report(
        function,
        cluster,
        stage.mesh.whole.axes,
        plan.space,
        plan.objective_s,
        plan.lower_bound_s,
        plan.gap,
        min(step.makespan_s, spent.serial_time_s),
        spent.compute_time_s,
        spent.communication_time_s,
        spent.peak_memory_bytes,
        memory_limit_bytes,
        tuple(
            _tensor_row(t, p, stage.mesh) for t, p in zip(graph.inputs, stage.inputs, strict=True)
        ),
        tuple(
            _tensor_row(t, p, stage.mesh, graph.output_name(n))
            for n, (t, p) in enumerate(zip(graph.outputs, stage.outputs, strict=True))
        ),
        _operator_rows(step, program),
        tuple(
            _collective_row(planned, move, exposed[id(move)], known) for move in program.collectives
        ),
        _largest(map(row, spent.peak_values)),
        found_rules,
        recomputation(planned),
        plan.stopped,
        () if priced_for is None else error_shares(planned, step, priced_for),
        carried_groups(graph),
        _carry_time_s(planned),
        tuple(dict.fromkeys(f"{op.kind} ({op.source})" for op in graph.ops if has_no_price(op))),
        graph.padding,
        _padding_time_s(step),
        _loop_parts(graph),
        graph.stages,
        plan.communication_weight,
        parallelism(facts_of(planned)),
        throughput(planned.task.graph, stage.mesh, planned.task.find, priced_for),
        block_rows(planned, step),
        _uses(planned, known),
        plan.hidden_weight,
        donation=donation(planned),
        step_bound_s=plan.step_bound_s,
    )


def _largest(rows: Iterable[TensorRow]) -> tuple[TensorRow, ...]:
    """The first of `rows`, until there are several kinds of them, or many: equal layers hold many of a kind."""
    found: list[TensorRow] = []
    kinds: set[TensorRow] = set()
    for row in rows:
        kinds.add(row)
        if len(kinds) > _PEAK_KINDS or len(found) == _PEAK_ROWS:
            break
        found.append(row)
    return tuple(found)


def _padding_time_s(step: StepSchedule) -> float:
    """The seconds of computing on what padding added."""
    computed = ((event.instruction, event.time_s * event.runs) for event in step.events)
    return sum(one.op.added * time_s for one, time_s in computed if isinstance(one, Compute))


def _loop_parts(graph: OpGraph) -> int:
    """In how many parts the rounds of loops over samples go, at most."""
    slices = (op for op in graph.ops if op.kind == "scan_slice" and op.params.get("in_parts"))
    return max((op.outs[0].shape[0] for op in slices), default=1)


def _carry_time_s(planned: Planned) -> float:
    """The seconds of a step's moves between the operators that make carried results and the results."""
    program = planned.program
    wanted = {program.outputs[out] for out, _ in planned.graph.carry}
    seconds = 0.0
    for instruction in reversed(program.instructions):
        if isinstance(instruction, Move) and not wanted.isdisjoint(instruction.outs):
            wanted.update(instruction.ins)
            seconds += program.runs(instruction) * instruction.time_s
    return seconds


def recomputation(planned: Planned) -> Recomputation | None:
    """What `planned` computes once more, what that costs, and the bytes of a device that it saves; None if nothing."""
    program = planned.program
    twins = [i for i in program.instructions if _is_twin(i)]
    if not twins:
        return None
    again = [i for i in twins if i.op.recomputes != i.op.id]
    read = {v for i in program.instructions if not _is_twin(i) for v in i.ins}
    seconds = sum(program.runs(i) * planned.pricing.op_cost(i.op, i.strategy) for i in again)
    saved = sum(
        program.runs(i) * program.local_bytes(v) for i in twins for v in i.outs if v in read
    )
    return Recomputation(len(twins), seconds, int(saved))


def _is_twin(instruction: Instruction) -> TypeGuard[Compute]:
    return isinstance(instruction, Compute) and instruction.op.recomputes is not None


def _tensor_row(
    tensor: TensorInfo, placement: Placement, mesh: DeviceMesh, name: str = ""
) -> TensorRow:
    size = 0 if tensor.on_host else placement.local_size(tensor.shape, mesh) * tensor.itemsize
    return TensorRow(
        name or tensor.name, tensor.shape, tensor.dtype, _where(tensor, placement), size
    )


def _where(tensor: TensorInfo, placement: Placement) -> str:
    return f"{placement}{ON_HOST}" if tensor.on_host else str(placement)


def _operator_rows(step: StepSchedule, program: ShardedProgram) -> tuple[OperatorRow, ...]:
    """The rows of all operators and local moves, in order.

    Equal ones, as of layers that are alike, are one.
    """
    known: dict[tuple[object, ...], OperatorRow] = {}
    found: list[OperatorRow] = []
    for one, _, _, _, time_s, runs, _, _ in step.events:
        if isinstance(one, Compute):
            op = one.op
            strategy = one.strategy
            phase = op.phase if op.recomputes is None else "recompute"
            key = (op.kind, op.source, op.scope, phase, id(strategy), time_s, runs)
            row = known.get(key)
            if row is None:
                ins, outs = (tuple(map(str, side)) for side in (strategy.ins, strategy.outs))
                what = op.kind, op.source, op.scope, phase
                row = known[key] = OperatorRow(*what, ins, outs, strategy.split, time_s, runs)
            found.append(row)
        elif not one.is_collective:
            found.append(_local_row(program, one, runs))

    return tuple(found)


def _local_row(program: ShardedProgram, move: Move, runs: float) -> OperatorRow:
    """The row of a slice or mask, which computes as operators do."""
    before, after = (program.values[value].placement for value in (*move.ins, *move.outs))
    parts = program.mesh.product(after.split_axes)
    shown = (str(before),), (str(after),)
    return OperatorRow(
        f"local {move.kind}", move.source, "", move.role, *shown, parts, move.time_s, runs
    )


def _uses(planned: Planned, known: Mapping[int, int]) -> tuple[UseRow, ...]:
    """Who reads each input, each way of reading it once; those that only cast or reshape it are followed."""
    graph = planned.graph
    found: dict[UseRow, None] = {}
    for op, strategy in zip(graph.ops, planned.plan.stage.strategies, strict=True):
        for tensor, placement in zip(op.ins, strategy.ins, strict=True):
            source = known.get(tensor.id)
            if source is not None and not is_again(op):
                name = graph.inputs[source].name
                use = UseRow(name, op.kind, op.source, op.phase, tensor.dtype, str(placement))
                found[use] = None
    return tuple(found)


def _collective_row(
    planned: Planned, move: Move, exposed_s: float, known: Mapping[int, int]
) -> CollectiveRow:
    graph = planned.graph
    moved = (known.get(planned.program.values[value].tensor.id) for value in move.ins)
    inputs = tuple(graph.inputs[position].name for position in moved if position is not None)
    tensors = tuple(_label(planned, planned.program.values[v].tensor) for v in move.ins)
    rounds = max(1, move.rounds)

    return CollectiveRow(
        *(
            move.kind,
            move.axes,
            move.size_bytes,
            move.time_s / rounds,
            move.role,
            move.source,
            move.reason,
            tensors,
        ),
        runs=planned.program.runs(move) * rounds,
        exposed_s=exposed_s,
        inputs=inputs,
    )


def _label(planned: Planned, tensor: TensorInfo) -> str:
    producer: OpNode | None = planned.graph.producers.get(tensor.id)
    if producer is None:
        return tensor.name or "a literal"
    return f"{producer.kind} ({producer.source})"
