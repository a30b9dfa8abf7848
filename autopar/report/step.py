"""Step: what runs in a step as a graph, folded; when each of it runs; and what a device holds meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from autopar.core.graph import TensorInfo
from autopar.core.placement import Placement
from autopar.core.program import Compute, Instruction, Move, ShardedProgram
from autopar.core.strategy import Strategy
from autopar.passes.schedule import Event, StepSchedule
from autopar.report.blocks import function_of, owners_of, phases_and_counts, places_of
from autopar.report.held import HeldCurve, held_curve
from autopar.report.layout import is_product
from autopar.search.dims import origins
from autopar.search.single_changes import Change, SingleChanges
from autopar.search.task import Planned
from cost_models import Cluster, group

_WORTH = 0.01
"""Of the time of a step: an operator that takes less, and is no product, is left out of the graph."""
_ALTERNATIVES = 8
"""Of an operator: how many strategies are told beside its own."""

Span = tuple[int, float, float]
"""What runs, by its number, from when to when."""


@dataclass(frozen=True)
class Alternative:
    """How an operator could run: the placements of its operands and results, in how many parts, and what that costs.

    `costs_s` is how much more the objective would be if it alone ran so, and what lies between it and its neighbours
    were chosen anew; neither memory nor constraints are looked at. 0 for what the plan chose.
    """

    ins: tuple[str, ...]
    outs: tuple[str, ...]
    split: int
    costs_s: float


@dataclass(frozen=True)
class InputPlacement:
    """How an input could lie, and how much more the objective would be then, as of `Alternative`."""

    placement: str
    costs_s: float


@dataclass(frozen=True)
class StepInput:
    """An input, by its path, with the cheapest placements that it may have: what the plan chose first."""

    name: str
    alternatives: tuple[InputPlacement, ...]


@dataclass(frozen=True)
class StepNode:
    """What runs at one place of what repeats, as layers do: operators of a phase in one strategy, or collectives.

    It runs `runs` times in a step, once for each layer. Times are those of all runs, with nothing beside them;
    `exposed_s` is how much longer collectives make the step. `name` is the function in which its line stands. `shape`
    and `dtype` are those of the first result, of one run. `reads` are the nodes, by position, whose results it reads as
    they are, or through others that are no main ones; those that another of them reads already are left out. Main are
    collectives, products, and what takes a hundredth of the step. `inputs` are the paths of the inputs among what the
    first of it reads, as they are, cast or reshaped. Of operators `split` is in how many parts they run, of collectives
    `axes`, `role`, `reason` and `size_bytes` (of all runs) are those of `CollectiveRow`, and `link` is the level of the
    cluster that its groups cross, the outermost; "" if that is not known.
    """

    kind: str
    name: str
    source: str
    phase: str
    runs: float
    time_s: float
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    is_main: bool
    reads: tuple[int, ...] = ()
    inputs: tuple[str, ...] = ()
    split: int = 1
    axes: tuple[str, ...] = ()
    role: str = ""
    reason: str = ""
    link: str = ""
    size_bytes: float = 0.0
    exposed_s: float = 0.0
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True)
class LoopRow:
    """A loop, or branch, from when to when it runs, in all its rounds. Of these events show the first."""

    kind: str
    rounds: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Step:
    """A step: its nodes in the order of the program, when each of them runs on the two streams, and what is held.

    `computing` and `communicating` are the events of the streams, in order: the number of a node, its start and end.
    `inputs` are those that main nodes read, where their alternatives are known.
    """

    nodes: tuple[StepNode, ...]
    computing: tuple[Span, ...]
    communicating: tuple[Span, ...]
    loops: tuple[LoopRow, ...]
    held: HeldCurve
    inputs: tuple[StepInput, ...] = ()


@dataclass
class _Found:
    """A node in the making: the first instruction of it, and sums over all."""

    first: Instruction
    phase: str
    is_main: bool = False
    runs: float = 0.0
    time_s: float = 0.0
    exposed_s: float = 0.0
    size_bytes: float = 0.0
    reads: int = 0
    functions: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))


def step_of(planned: Planned, schedule: StepSchedule, cluster: Cluster | None) -> Step:
    """The step of `planned`, which runs as `schedule` says on `cluster` (None: its links are not known)."""
    nodes = _Nodes(planned)
    for event in schedule.events:
        nodes.add(event)
    nodes.link()

    streams: tuple[list[Span], list[Span]] = ([], [])
    for event in schedule.events:
        if event.end_s > event.start_s:
            number = nodes.number_of(event.instruction)
            streams[event.communicates].append((number, event.start_s, event.end_s))
    loops = (
        LoopRow(planned.program.tree[one.region].kind, one.rounds, one.start_s, one.end_s)
        for one in schedule.spans
        if one.end_s > one.start_s
    )

    computing, communicating = (tuple(sorted(s, key=lambda span: span[1:])) for s in streams)
    rows = tuple(nodes.rows(cluster))
    return Step(rows, computing, communicating, tuple(loops), held_curve(planned, schedule))


def with_alternatives(step: Step, planned: Planned) -> Step:
    """The step with the alternatives of its main operators and of what they read, as far as they are known."""
    nodes = _Nodes(planned)
    first = dict(nodes.first_operators(step))
    changes = SingleChanges(planned)
    known = changes.of_operators({*first.values()})
    rows = [
        replace(row, alternatives=_alternatives(row, known.get(first.get(number, -1), ())))
        for number, row in enumerate(step.nodes)
    ]

    read = {name for row in step.nodes if row.is_main for name in row.inputs}
    names = {n: one.name for n, one in enumerate(planned.graph.inputs) if one.name in read}
    placed = changes.of_inputs(names).items()
    inputs = tuple(StepInput(names[n], _placements(options)) for n, options in placed)
    return replace(step, nodes=tuple(rows), inputs=inputs)


def _placements(changes: Iterable[Change[Placement]]) -> tuple[InputPlacement, ...]:
    """The cheapest, what the plan chose first."""
    own_first = sorted(changes, key=lambda change: not change.is_own)[: 1 + _ALTERNATIVES]
    return tuple(InputPlacement(str(change.candidate), change.costs_s) for change in own_first)


def _alternatives(row: StepNode, changes: Iterable[Change[Strategy]]) -> tuple[Alternative, ...]:
    """The cheapest ways to place operands and results, what the plan chose first."""
    found: dict[tuple[tuple[str, ...], ...], Alternative] = {}
    for change in changes:
        strategy = change.candidate
        sides = tuple(map(str, strategy.ins)), tuple(map(str, strategy.outs))
        found.setdefault(sides, Alternative(*sides, strategy.split, change.costs_s))

    own = found.pop((row.ins, row.outs), None)
    return () if own is None else (own, *[*found.values()][:_ALTERNATIVES])


class _Nodes:
    """The nodes of a program, in the order in which their first instructions come."""

    def __init__(self, planned: Planned) -> None:
        self._planned = planned
        self._program: ShardedProgram = planned.program
        self._keys = phases_and_counts(planned)
        self._places = places_of(planned)
        self._owners = owners_of(planned.program)
        self._numbers: dict[object, int] = {}
        self._found: list[_Found] = []
        self._known: dict[int, int] = {}
        self._inputs = origins(planned.graph)

    def number_of(self, one: Compute | Move) -> int:
        """The node of an instruction, or of a move inside an operator; a new one if it is the first."""
        known = self._known.get(id(one))
        if known is None:
            key, phase = self._key(one)
            known = self._numbers.setdefault(key, len(self._found))
            self._known[id(one)] = known
            if known == len(self._found):
                self._found.append(_Found(one, phase))
        return known

    def _key(self, one: Compute | Move) -> tuple[object, str]:
        """What tells the node apart from others, and its phase."""
        if isinstance(one, Compute):
            return (self._places[one.op.id], one.strategy), self._keys[one.op.id][0]

        owner = self._owners.get(one.outs[0]) if one.outs else None
        phase = "update" if owner is None else self._keys[owner][0]
        place = -1 if owner is None else self._places[owner]
        before, after = (self._program.values[side[0]].placement for side in (one.ins, one.outs))
        return (place, one.kind, one.axes, one.role, before, after, len(one.ins)), phase

    def add(self, event: Event) -> None:
        """Takes an event into account."""
        one = event.instruction
        found = self._found[self.number_of(one)]
        found.runs += event.runs
        found.time_s += event.time_s * event.runs
        if isinstance(one, Move):
            found.size_bytes += one.size_bytes * event.runs
            found.exposed_s += float(event.weight_s) if event.communicates else 0.0
        for name in function_of(_source(one)):
            found.functions[name] += event.time_s * event.runs

    def link(self) -> None:
        """Says which nodes are main, and which read which."""
        whole = sum(found.time_s for found in self._found)
        for found in self._found:
            is_heavy = found.time_s >= _WORTH * whole > 0
            found.is_main = is_heavy or _is_always_main(found.first)

        seen: set[int] = set()
        behind: dict[int, int] = {}  # for every value the main nodes that it is made of, as bits
        ancestors: dict[int, int] = {}  # for every main node, likewise
        for one, ins, outs in _runs(self._program):
            number = self.number_of(one)
            reads = 0
            for value in ins:
                reads |= behind.get(value, 0)
            if self._found[number].is_main:
                if number not in seen:
                    seen.add(number)
                    self._found[number].reads = _nearest(reads, ancestors)
                    ancestors[number] = _all_behind(reads, ancestors)
                reads = 1 << number
            for value in outs:
                behind[value] = reads if len(outs) else 0

    def first_operators(self, step: Step) -> Iterator[tuple[int, int]]:
        """The first operator of each main node of operators of `step`, by the node's number."""
        for one, _, _ in _runs(self._program):
            number = self.number_of(one)
            found = self._found[number]
            if found.first is one and isinstance(one, Compute) and step.nodes[number].is_main:
                yield number, one.op.id

    def rows(self, cluster: Cluster | None) -> Iterator[StepNode]:
        """The nodes as rows."""
        for found in self._found:
            one = found.first
            result = self._program.values[one.outs[0]].tensor if one.outs else None
            name = max(found.functions, key=lambda name: found.functions[name], default="")
            row = _row(found, self._sides(one), result)
            link = self._link(one, cluster)
            yield replace(row, name=name, inputs=self._read_by(one), link=link)

    def _sides(self, one: Instruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if isinstance(one, Compute):
            return tuple(map(str, one.strategy.ins)), tuple(map(str, one.strategy.outs))
        values = self._program.values
        ins, outs = (
            tuple(dict.fromkeys(str(values[v].placement) for v in side))
            for side in (one.ins, one.outs)
        )
        return ins, outs

    def _read_by(self, one: Instruction) -> tuple[str, ...]:
        """The paths of the inputs that an instruction reads, those that go on to others cast or reshaped included."""
        tensors = (self._program.values[value].tensor.id for value in one.ins)
        positions = (self._inputs.get(tensor) for tensor in tensors)
        inputs = self._planned.graph.inputs
        return tuple(dict.fromkeys(inputs[n].name for n in positions if n is not None))

    def _link(self, one: Instruction, cluster: Cluster | None) -> str:
        """The outermost level of the cluster that the groups of a collective cross."""
        if not isinstance(one, Move) or not one.is_collective or cluster is None:
            return ""
        mesh = self._program.mesh
        positions = tuple(mesh.names.index(axis) for axis in one.axes)
        crossed = group(cluster.topology, mesh.sizes, positions)
        return next((span.level.name for span in crossed.spans if span.sharing), "")


def _row(
    found: _Found, sides: tuple[tuple[str, ...], tuple[str, ...]], result: TensorInfo | None
) -> StepNode:
    """A node as a row, as far as it follows from sums and the first of it."""
    one = found.first
    row = StepNode(
        _kind(one),
        "",
        _source(one),
        found.phase,
        found.runs,
        found.time_s,
        *sides,
        () if result is None else result.shape,
        "" if result is None else result.dtype,
        found.is_main,
        tuple(_bits(found.reads)),
    )

    if isinstance(one, Compute):
        return replace(row, split=one.strategy.split)
    if not isinstance(one, Move) or not one.is_collective:
        return row
    return replace(
        row,
        axes=one.axes,
        role=one.role,
        reason=one.reason,
        size_bytes=found.size_bytes,
        exposed_s=found.exposed_s,
    )


def _kind(one: Instruction) -> str:
    if isinstance(one, Move):
        return one.kind if one.is_collective else f"local {one.kind}"
    assert isinstance(one, Compute)
    return one.op.kind


def _source(one: Instruction) -> str:
    if isinstance(one, Compute):
        return one.op.source
    return one.source if isinstance(one, Move) else ""


def _is_always_main(one: Instruction) -> bool:
    if isinstance(one, Compute):
        return is_product(one.op)
    return isinstance(one, Move) and one.is_collective


Values = Collection[int]


def _runs(program: ShardedProgram) -> Iterator[tuple[Compute | Move, Values, Values]]:
    """What runs, in order, with what it reads and makes: moves inside an operator before it, or behind it."""
    for one in program.instructions:
        if isinstance(one, Move):
            yield one, one.ins, one.outs
        elif isinstance(one, Compute):
            before = [move for move in one.exchanges if move.ins[0] in one.ins]
            for move in before:
                yield move, move.ins, move.outs
            made = [value for move in before for value in move.outs]
            yield one, (*one.ins, *made), one.outs
            for move in one.exchanges:
                if move.ins[0] not in one.ins:
                    yield move, move.ins, move.outs


def _nearest(reads: int, ancestors: Mapping[int, int]) -> int:
    """Of `reads`, as bits, those that no other of them is made of."""
    behind = 0
    for number in _bits(reads):
        behind |= ancestors[number]
    return reads & ~behind


def _all_behind(reads: int, ancestors: Mapping[int, int]) -> int:
    found = reads
    for number in _bits(reads):
        found |= ancestors[number]
    return found


def _bits(number: int) -> Iterator[int]:
    """The positions of the bits that are set, ascending."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
