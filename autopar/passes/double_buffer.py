"""double_buffer: collectives of a scan that run a round ahead of what reads them, or a round behind what makes them.

A round begins with products of parameters that are split over devices, and ends with gradients that are reduced: of the
first gathers and the last reductions nothing else can run beside them. They can beside another round: what is gathered
is carried into the next round, which finds it there, and what is to be reduced is carried into the next, which reduces
it while it computes. Both are what XLA's collective pipeliner does inside a compiler; here the carries are in the
program, so they are priced and take memory.

    before the scan    slice of the first round, gathered                 zeros
    each round         the next slice is gathered for the next round      what the round before left is reduced
    behind it                                                             what the last round left is reduced

The last round gathers once more, what nobody reads, and the first reduces zeros: one run a loop that is for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from autopar.core.graph import OpNode
from autopar.core.plan import DoubleBuffered
from autopar.core.program import Compute, Instruction, Move, ShardedProgram, Value
from autopar.core.regions import ENTERING
from autopar.core.strategy import Strategy
from autopar.memory.account import OpCost
from autopar.passes.rounds import Rounds, scans
from autopar.redistribute.step import StepPrice


class Prices(NamedTuple):
    """Seconds of a redistribution step, and of an operator under a strategy."""

    step: StepPrice
    op: OpCost


Names = dict[int, int]
"""What values are called in another round."""


def most_buffered(program: ShardedProgram) -> tuple[DoubleBuffered, ...]:
    """For every scan in which there are any, how many of its collectives may run a round ahead, and how many behind."""
    found = (Rounds(program, region) for region in scans(program))
    most = (DoubleBuffered(one.scan.id, len(one.ahead), len(one.behind)) for one in found)
    return tuple(one for one in most if one.ahead or one.behind)


def double_buffered(
    program: ShardedProgram, chosen: Sequence[DoubleBuffered], prices: Prices
) -> ShardedProgram:
    """`program` with so many collectives of its scans a round ahead and behind.

    Args:
      program: routed (no Convert left).
      chosen: how many of which scans, each at most once and no more than `most_buffered`.
      prices: what decides where in a round they are run.

    Raises:
      ValueError: there are not so many.
    """
    for one in chosen:
        rounds = Rounds(program, program.tree[one.region])
        if one.ahead > len(rounds.ahead) or one.behind > len(rounds.behind):
            raise ValueError(
                f"{one} of {len(rounds.ahead)} ahead and {len(rounds.behind)} behind in the scan"
            )
        program = _Rewrite(rounds, one, prices).program()
    return program


def in_flight_bytes(program: ShardedProgram, chosen: Sequence[DoubleBuffered]) -> int:
    """What the collectives of one scan may hold that run all round, beside what is carried: operands, and a copy each.

    Args:
      program: before it is double buffered.
      chosen: as of `double_buffered`.
    """
    return max((_in_flight(Rounds(program, program.tree[o.region]), o) for o in chosen), default=0)


def largest_in_flight(program: ShardedProgram) -> int:
    """The most that one collective may hold: operands, results, and a copy."""
    return max(
        (
            one.size_bytes + sum(map(program.local_bytes, (*one.ins, *one.outs)))
            for one in program.instructions
            if isinstance(one, Move) and one.is_collective and one.region is not None
        ),
        default=0,
    )


def _in_flight(rounds: Rounds, chosen: DoubleBuffered) -> int:
    moves = [*rounds.ahead[: chosen.ahead], *rounds.behind[: chosen.behind]]
    held = 0
    for _, one in rounds.of(moves):
        assert isinstance(one, Move)
        held += one.size_bytes + sum(map(rounds.all.local_bytes, one.ins))
    return held


@dataclass(eq=False)
class _Rewrite:
    """One scan while it is written anew: what stands before it, enters, ends a round, leaves, and stands behind it.

    `carried` is what inside is read in place of a value that was made a round ahead; `between` what is run in front of
    an instruction of the body, by its position; `passed_on` what the next round reads of this one.
    """

    rounds: Rounds
    chosen: DoubleBuffered
    prices: Prices
    values: dict[int, Value] = field(default_factory=dict[int, Value])
    before: list[Instruction] = field(default_factory=list["Instruction"])
    entering: list[Instruction] = field(default_factory=list["Instruction"])
    between: dict[int, list[Instruction]] = field(default_factory=dict[int, "list[Instruction]"])
    last: list[Instruction] = field(default_factory=list["Instruction"])
    leaving: list[Instruction] = field(default_factory=list["Instruction"])
    behind: list[Instruction] = field(default_factory=list["Instruction"])
    carried: Names = field(default_factory=Names)
    passed_on: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        self.whole = self.rounds.all
        self.next_value = max(self.whole.values) + 1
        borders = [
            one.op
            for _, one in self.rounds.of(self.rounds.span)
            if isinstance(one, Compute) and one.region == self.rounds.scan.id
        ]
        self.border = borders[0]
        self.next_carry = 1 + max(
            (op.params["position"] for op in borders if op.kind == "carry_in"), default=-1
        )

    def program(self) -> ShardedProgram:
        """The whole program, with this scan anew."""
        rounds = self.rounds
        ahead = rounds.ahead[: self.chosen.ahead]
        replaced = self._run_behind(rounds.behind[: self.chosen.behind])
        staying = self._staying({*replaced, *ahead})
        self._run_ahead(ahead, staying)

        instructions = self.whole.instructions
        written = (
            *instructions[: rounds.span.start],
            *self.before,
            *self._scan(staying),
            *self.behind,
            *instructions[rounds.span.stop :],
        )
        return self.whole.with_instructions(written, self.values)

    def _staying(self, replaced: set[int]) -> set[int]:
        """What is run in a round as ever: not what is `replaced`, nor what only that did read."""
        rounds = self.rounds
        slices = {*rounds.slices.values()}
        read = set(self.passed_on)
        found: set[int] = set()

        for n, one in rounds.of(rounds.span[::-1]):
            serves = n in rounds.early or n in slices
            if n not in replaced and not (serves and read.isdisjoint(one.outs)):
                found.add(n)
                read.update(one.ins)
        return found

    def _scan(self, staying: set[int]) -> list[Instruction]:
        """The scan: what is `staying`, and what is run for other rounds."""
        rounds = self.rounds
        entering: list[Instruction] = []
        body: list[Instruction] = []
        leaving: list[Instruction] = []
        for n, one in rounds.of(rounds.span):
            body += self.between.get(n, [])
            if n in staying:
                part = body
                if isinstance(one, Compute) and one.region == rounds.scan.id:
                    part = entering if one.op.kind in ENTERING else leaving
                part.append(_reading(one, self.carried))

        return [
            *entering,
            *self.entering,
            *body,
            *self.last,
            *leaving,
            *self.leaving,
        ]

    def _run_ahead(self, chosen: Sequence[int], staying: set[int]) -> None:
        """`chosen`, and what they depend on, for the next round in each, and for the first one before the scan.

        What no one `staying` reads comes with those that need it.
        """
        rounds = self.rounds
        early = rounds.before(chosen)
        here = Names()
        then = Names()
        for value, n in rounds.slices.items():
            one = self.whole.instructions[n]
            if isinstance(one, Compute) and not set(rounds.readers.get(value, ())).isdisjoint(
                early
            ):
                self.before.append(self._sliced(one, "scan_first", here))
                self.entering.append(self._sliced(one, "scan_slice", then))

        for _, one in rounds.of(early):
            self.before.append(self._again(one, here, rounds.scan.parent))

        reading = {n: staying.intersection(rounds.reading(n)) for n in chosen}
        places = {n: self._behind_readers(n, max(at)) for n, at in reading.items() if at}
        made: set[int] = set()
        for n in sorted(places, key=lambda n: (places[n], n)):
            for m in rounds.before([n]):
                if m not in made:
                    made.add(m)
                    self._insert(places[n], self._again(self.whole.instructions[m], then, None))
            for value in self.whole.instructions[n].outs:
                if not staying.isdisjoint(rounds.readers.get(value, ())):
                    self.carried[value], _ = self._carry(value, here[value], then[value], True)

    def _behind_readers(self, number: int, last: int) -> int:
        """In front of which instruction a collective is run for the next round: behind the `last` that reads this one.

        A compiler issues it sooner, and copies it into the carry (XLA for GPUs does). Where less is left to compute
        than it takes, it is run as a round begins.
        """
        rounds = self.rounds
        place = next((n for n in rounds.near if n > last), rounds.span.stop)
        left_s = self._computing_s(range(place, rounds.span.stop))
        return place if left_s > self._taken_s(rounds.before([number])) else rounds.near[0]

    def _run_behind(self, chosen: Sequence[int]) -> set[int]:
        """`chosen`, and what depends on them, for the round before in each, and for the last one behind the scan.

        Returns:
          What is replaced by that.
        """
        rounds = self.rounds
        late = rounds.after(chosen)
        made = {v for n in late for v in self.whole.instructions[n].outs}
        inside = Names()
        behind = Names()
        places = {n: self._before_maker(n, late) for n in chosen}

        for n in chosen:
            for value in self.whole.instructions[n].ins:
                if value in rounds.makers and value not in made and value not in inside:
                    is_copied = places[n] == rounds.near[0]
                    start = self._zeros(value)
                    self.passed_on.add(value)
                    inside[value], behind[value] = self._carry(value, start, value, is_copied)

        waiting = set(late)
        for n in sorted(chosen, key=lambda n: (places[n], n)):
            for m in rounds.after([n]):
                one = self.whole.instructions[m]
                if m in waiting and not any(rounds.makers.get(v) in waiting for v in one.ins):
                    waiting.remove(m)
                    self._insert(places[n], _reading(one, inside))

        for _, one in rounds.of(late):
            self.behind.append(self._again(one, behind, rounds.scan.parent))

        stacks = {n for v in made for n in rounds.readers[v] if n not in late}
        for _, one in rounds.of(sorted(stacks)):
            assert isinstance(one, Compute)
            self._stack(one, behind)

        return {*late, *stacks}

    def _before_maker(self, number: int, late: Sequence[int]) -> int:
        """In front of which instruction a collective is run for the round before: of all that make its operands.

        There it needs no memory but that of the carry, and no copy. Where less is computed before than it takes, it is
        run as a round begins.
        """
        rounds = self.rounds
        makers = [
            rounds.makers[v] for v in self.whole.instructions[number].ins if v in rounds.makers
        ]
        place = min((n for n in makers if n not in late), default=rounds.span.stop)
        if place not in rounds.near:
            return rounds.near[0]
        before_s = self._computing_s(range(rounds.span.start, place))
        return place if before_s > self._taken_s(rounds.after([number])) else rounds.near[0]

    def _insert(self, place: int, one: Instruction) -> None:
        """Runs `one` in front of what stands at `place`, in the same block."""
        region = self.whole.instructions[place].region
        self.between.setdefault(place, []).append(_in_region(one, region))

    def _computing_s(self, positions: range) -> float:
        tree = self.whole.tree
        once = tree.weight(self.rounds.body)
        return sum(
            self.prices.op(one.op, one.strategy) * tree.weight(one.region) / once
            for _, one in self.rounds.of(positions)
            if isinstance(one, Compute)
        )

    def _taken_s(self, positions: Sequence[int]) -> float:
        return sum(one.time_s for _, one in self.rounds.of(positions) if isinstance(one, Move))

    def _zeros(self, value: int) -> int:
        """Zeros in the place of `value`, before the scan."""
        made = self._new(value)
        op = self._border("scan_start", (), value, self.rounds.scan.parent)
        placed = self.whole.values[value].placement
        self.before.append(Compute(op, Strategy((), (placed,)), (), (made,)))
        return made

    def _sliced(self, one: Compute, kind: str, names: Names) -> Compute:
        """A slice as `kind`: that of the first round before the scan, or that of the next in each."""
        (value,) = one.outs
        scan = self.rounds.scan
        region = scan.parent if kind == "scan_first" else scan.id
        op = replace(
            one.op,
            kind=kind,
            params={**one.op.params, "shift": 1},
            region=region,
            payload=scan.payload,
        )
        names[value] = self._new(value)
        return Compute(op, one.strategy, one.ins, (names[value],))

    def _stack(self, one: Compute, names: Names) -> None:
        """A stack of what the rounds before leave, and behind the scan what the last one does."""
        (read,) = one.ins
        (stack,) = one.outs
        scan = self.rounds.scan
        rest = self._new(stack)

        op = replace(one.op, params={**one.op.params, "shift": -1})
        self.leaving.append(Compute(op, one.strategy, one.ins, (rest,)))

        last = replace(
            one.op,
            kind="scan_last",
            ins=(*one.op.outs, *one.op.ins),
            region=scan.parent,
            payload=scan.payload,
        )
        strategy = Strategy((*one.strategy.outs, *one.strategy.ins), one.strategy.outs)
        self.behind.append(Compute(last, strategy, (rest, names[read]), (stack,)))

    def _carry(self, value: int, start: int, end: int, is_copied: bool) -> tuple[int, int]:
        """Carries `end` of each round into the next, `start` into the first: its names inside, and behind the scan."""
        entered = self._new(value)
        copied = self._copy(end) if is_copied else end
        left = self._new(value)
        scan = self.rounds.scan
        placed = self.whole.values[value].placement
        passed = Strategy((placed,), (placed,))
        params = {"position": self.next_carry}
        self.next_carry += 1
        for kind, ins, outs, part in (
            ("carry_in", start, entered, self.entering),
            ("carry_out", copied, left, self.leaving),
        ):
            op = self._border(kind, (value,), value, scan.id, params)
            part.append(Compute(op, passed, (ins,), (outs,)))

        return entered, left

    def _copy(self, value: int) -> int:
        """A copy that lies in the memory of the carry, whose own value is read before: a mask along no axes."""
        copied = self._new(value)
        tensor = self.values[copied].tensor
        placed = self.values[copied].placement
        size = placed.local_size(tensor.shape, self.whole.mesh) * tensor.itemsize

        self.last.append(
            Move(
                "mask",
                (),
                (value,),
                (copied,),
                size,
                self.prices.step("mask", (), size),
                "redistribution",
                region=self.rounds.body,
                source=self.border.source,
                reason="carried into the next round",
            )
        )
        return copied

    def _border(
        self,
        kind: str,
        ins: tuple[int, ...],
        out: int,
        region: int | None,
        params: dict[str, Any] | None = None,
    ) -> OpNode:
        """An operator of the scan's own."""
        tensors = [self.whole.values[v].tensor for v in (*ins, out)]
        return replace(
            self.border,
            kind=kind,
            ins=tuple(tensors[:-1]),
            outs=tuple(tensors[-1:]),
            params=params or {},
            region=region,
        )

    def _again(self, one: Instruction, names: Names, region: int | None) -> Instruction:
        """`one` once more in `region`, with values of its own, which `names` has from now on."""
        again = _reading(one, names)
        outs = tuple(map(self._new, one.outs))
        names.update(zip(one.outs, outs, strict=True))
        return _in_region(again._replace(outs=outs), region)

    def _new(self, value: int) -> int:
        """Another value like `value`."""
        number = self.next_value
        self.next_value += 1
        known = self.values.get(value) or self.whole.values[value]
        self.values[number] = known._replace(id=number)
        return number


def _reading(one: Instruction, names: Names) -> Instruction:
    """`one`, which reads and sends what `names` has in the place of its operands."""
    ins = tuple(names.get(v, v) for v in one.ins)
    if isinstance(one, Compute) and one.exchanges:
        sent = (
            move._replace(ins=tuple(names.get(v, v) for v in move.ins)) for move in one.exchanges
        )
        return one._replace(ins=ins, exchanges=tuple(sent))
    return one._replace(ins=ins)


def _in_region(one: Instruction, region: int | None) -> Instruction:
    if isinstance(one, Compute):
        return one._replace(op=replace(one.op, region=region))
    return one._replace(region=region)
