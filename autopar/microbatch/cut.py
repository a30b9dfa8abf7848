"""Cut: how every operator of a step runs on one micro-batch, by the rules that say how it is split over devices.

The mesh has one axis, `AXIS`, whose positions are the rounds of a loop and not devices. A tensor split along it is
made slice by slice; one that is unreduced has a part in each round, combined when all are done; a whole one is the
same in all rounds. What depends on combined values is late: it runs once, behind the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Literal

import numpy as np

from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.pins import BY_HAND
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.regions import CONTROL
from autopar.core.strategy import Strategy
from autopar.errors import BatchNotCut
from autopar.microbatch.sink import sunk
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.factor_rule import FactorRule
from autopar.ops.traits import traits_of
from autopar.search.resolve import no_rule, resolve

AXIS = "micro_batch"
"""The mesh axis whose positions are micro-batches."""
_NUMBERING = frozenset({"iota", "iota_2x32_shape"})
"""Operators that number elements: they can number every nth."""
Status = Literal["early", "loop", "late"]
_CARRIES = frozenset({"carry_in", "carry_out", "cond_result"})


@dataclass(frozen=True)
class Slices:
    """How a batch of rows is cut.

    Rows are numbered by (major, slice, minor): each of `count` slices has one run of rows (`majors` is 1), or every
    `count`th row (`majors` is rows / count). The latter leaves rows on the devices that hold them.
    """

    count: int
    majors: int = 1

    @property
    def rows(self) -> int | None:
        """The rows of the whole batch, where these are one by one; None where it is no matter."""
        return None if self.majors == 1 else self.majors * self.count


def cut(graph: OpGraph, batch: Collection[int], count: int) -> tuple[Stage, Slices]:
    """How `graph` runs when the first dim of the inputs at positions `batch` is cut into `count` slices.

    Every `count`th row goes into one slice, if all operators can be cut so.

    Raises:
      BatchNotCut: an operator needs more than one slice to give what the others read; the message names it.
    """
    _refuse(graph)

    rows = {graph.inputs[position].shape[0] for position in batch}
    if len(rows) == 1:
        interleaved = Slices(count, rows.pop() // count)
        try:
            return _cut(graph, batch, interleaved), interleaved
        except BatchNotCut:  # the message of the other way says more
            pass

    return _cut(graph, batch, Slices(count)), Slices(count)


def _cut(graph: OpGraph, batch: Collection[int], slices: Slices) -> Stage:
    mesh = DeviceMesh(((AXIS, slices.count),))
    split = frozenset(graph.inputs[position].id for position in batch)
    options = _Options(graph, mesh, slices)
    once: frozenset[int] = frozenset()
    entering: dict[int, Placement] = {}

    while True:
        attempt = _Cut(graph, options, split, once, dict(entering))
        try:
            attempt.run()
        except _NeededEarly as need:
            once |= attempt.whole_batch_cone(need)
            continue
        if attempt.entering == entering:
            break
        entering = attempt.entering

    return Stage(
        mesh,
        tuple(Placement.replicated(tensor.ndim) for tensor in graph.inputs),
        sunk(graph, tuple(attempt.strategies), attempt.movable, options.of),
        (),
        tuple(Placement.replicated(tensor.ndim) for tensor in graph.outputs),
    )


@dataclass(eq=False)
class _Options:
    """The strategies of operators that need nothing of other slices, found once for operators of one signature."""

    graph: OpGraph
    mesh: DeviceMesh
    slices: Slices
    known: dict[int, tuple[Strategy, ...]] = field(default_factory=dict[int, tuple[Strategy, ...]])

    def of(self, op: OpNode) -> tuple[Strategy, ...]:
        """The strategies of `op`."""
        first = self.graph.alike[op.id]
        if first not in self.known:
            rule = resolve(op, no_rule)
            every = enumerate_strategies(rule, self.mesh)
            self.known[first] = tuple(s for s in every if self._is_open(op, rule, s))
        return self.known[first]

    def _is_open(self, op: OpNode, rule: FactorRule, strategy: Strategy) -> bool:
        """Whether `strategy` needs nothing of other slices, and its slices are those of the batch."""
        if strategy.exchanges:
            return False
        rows = self.slices.rows
        if rows is None:
            return True

        ways = (rule, *rule.ways)
        given = [factor for factor, _ in strategy.factors]
        counts = op.kind in _NUMBERING

        return all(
            way.sizes.get(factor, 0) in (0, rows) and (counts or factor not in way.offsets)
            for way in ways
            for factor in given
        )


def _refuse(graph: OpGraph) -> None:
    """Raises BatchNotCut for what no rule can cut: effects, and what the user split by hand."""
    for op in graph.ops:
        if op.effect is not None:
            raise BatchNotCut(
                f"{op.kind} ({op.source}) calls the host, and would do so for every micro-batch: take it out of the "
                f"step, or return what it needs"
            )
        if op.kind in BY_HAND:
            raise BatchNotCut(
                f"{op.kind} ({op.source}) is split by hand, and autopar does not cut it further: accumulate inside "
                f"of it, or write that part without shard_map"
            )


class _NeededEarly(Exception):
    """Operator `op` reads, for every example, `tensor`, which is known when all micro-batches are done."""

    def __init__(self, op: OpNode, tensor: TensorInfo) -> None:
        super().__init__()
        self.op = op
        self.tensor = tensor


@dataclass(eq=False)
class _Cut:
    """One pass over the graph.

    `split` are the inputs that are cut, `once` the operators that run before the loop on the whole batch, `entering`
    what carry_in operators hold, where it is more than what goes in. `home` is how each tensor is made; those in
    `late` are known behind the loop only. `status` says of outermost control regions where they run.
    """

    graph: OpGraph
    options: _Options
    split: frozenset[int]
    once: frozenset[int]
    entering: dict[int, Placement]
    home: dict[int, Placement] = field(default_factory=dict[int, Placement])
    late: set[int] = field(default_factory=set[int])
    status: dict[int, Status] = field(default_factory=dict[int, "Status"])
    strategies: list[Strategy] = field(default_factory=list[Strategy])

    def run(self) -> None:
        """Chooses a strategy for every operator.

        Raises:
          _NeededEarly: a late value is needed in the loop.
          BatchNotCut: an operator cannot be cut.
        """
        for tensor in self.graph.inputs:
            dims = ((AXIS,), *((),) * (tensor.ndim - 1)) if tensor.id in self.split else None
            self.home[tensor.id] = Placement(dims or ((),) * tensor.ndim)

        for op in self.graph.ops:
            strategy = self._carry(op) if op.kind in _CARRIES else self._choose(op)
            self.strategies.append(strategy)
            for tensor, placement in zip(op.outs, strategy.outs, strict=True):
                self.home[tensor.id] = placement

        self._promote()

    def movable(self, op: OpNode) -> bool:
        """Whether `op`, which runs whole, may run on slices where only these are read."""
        region = self._outermost(op.region)
        in_loop = region is None or self.status[region] == "loop"
        is_late = any(tensor.id in self.late for tensor in (*op.ins, *op.outs))
        return in_loop and not is_late and op.kind not in _CARRIES

    def whole_batch_cone(self, need: _NeededEarly) -> frozenset[int]:
        """The operators that make what is `need`ed of whole inputs: it is to be cheap, without any product.

        Raises:
          BatchNotCut: it is not.
        """
        found: set[int] = set()
        open_tensors = [need.tensor]
        while open_tensors:
            tensor = open_tensors.pop()
            producer = self.graph.producers.get(tensor.id)
            if producer is None or producer.id in found:
                continue
            for op in self._together(producer):
                found.add(op.id)
                open_tensors += op.ins
                if traits_of(op.kind).is_contraction or op.body is not None:
                    raise self._mixes(need)

        if found <= self.once:
            raise self._mixes(need)
        return frozenset(found)

    def _mixes(self, need: _NeededEarly) -> BatchNotCut:
        maker = self._combiner(need)
        return BatchNotCut(
            f"{need.op.kind} ({need.op.source}) reads for every example what {maker.kind} ({maker.source}) combines "
            f"of the whole batch, so no micro-batch can be done before all others are. Take statistics of each "
            f"micro-batch (outside of accumulate), or of none, as layer norm does"
        )

    def _combiner(self, need: _NeededEarly) -> OpNode:
        """The last operator whose parts are combined for what is `need`ed."""
        op = self.graph.producers.get(need.tensor.id, need.op)
        while not any(self.home[tensor.id].varying_axes for tensor in op.outs):
            late = [
                t
                for t in op.ins
                if t.id in self.late or (t.id in self.home and self.home[t.id].unreduced)
            ]
            if not late:
                break
            op = self.graph.producers[late[0].id]
        return op

    def _together(self, op: OpNode) -> tuple[OpNode, ...]:
        """`op`, with all of the outermost control region that it is in."""
        region = self._outermost(op.region)
        if region is None:
            return (op,)
        first, last = self.graph.spans[region]
        return self.graph.ops[first : last + 1]

    def _outermost(self, region: int | None) -> int | None:
        """The outermost control region around, or at, `region`."""
        tree = self.graph.tree
        return next((r for r in reversed(tree.path(region)) if tree.kind(r) in CONTROL), None)

    def _status(self, op: OpNode) -> Status | None:
        """Where the outermost control region around `op` runs; None if there is no such region."""
        region = self._outermost(op.region)
        if region is None:
            return None
        if region not in self.status:
            members = self._together(op)
            made = {tensor.id for member in members for tensor in member.outs}
            read = [t for m in members for t in m.ins if t.id not in made and t.literal is None]
            self.status[region] = self._status_of(read) if op.id not in self.once else "early"
        return self.status[region]

    def _status_of(self, read: Iterable[TensorInfo]) -> Status:
        """Where a region runs that reads these: in the loop, if some are split."""
        tensors = list(read)
        if any(self.home[tensor.id].split_axes for tensor in tensors):
            return "loop"
        is_late = any(t.id in self.late or self.home[t.id].unreduced for t in tensors)
        return "late" if is_late else "early"

    def _here(self, op: OpNode, tensor: TensorInfo) -> Placement:
        """How `op` finds `tensor`: whole, if it runs once before the loop."""
        if tensor.literal is not None or op.id in self.once:
            return Placement.replicated(tensor.ndim)
        return self.home[tensor.id]

    def _choose(self, op: OpNode) -> Strategy:
        ins = tuple(self._here(op, tensor) for tensor in op.ins)
        status = self._status(op)
        late = self._late(op)
        sums = [t for t, placement in zip(op.ins, ins, strict=True) if placement.unreduced]
        is_split = any(placement.split_axes for placement in ins)
        if late and (status == "loop" or is_split):
            raise _NeededEarly(op, late[0])
        if not is_split and not sums:
            return self._whole(op, is_late=bool(late) or status == "late")

        found = _cheapest(op, self.options.of(op), ins)
        if not is_split and status != "loop":
            goes_on = status is None and not late and _gains(op, found, ins)
            return found if found and goes_on else self._whole(op, is_late=True)
        if found is not None:
            return found
        if sums:
            raise _NeededEarly(op, sums[0])
        raise BatchNotCut(
            f"{op.kind} ({op.source}) needs all examples of the batch at once, so the batch cannot be cut into "
            f"{self.options.mesh.size} micro-batches"
        )

    def _late(self, op: OpNode) -> list[TensorInfo]:
        """The operands that are known behind the loop only."""
        return [] if op.id in self.once else [t for t in op.ins if t.id in self.late]

    def _whole(self, op: OpNode, *, is_late: bool) -> Strategy:
        if is_late:
            self.late.update(tensor.id for tensor in op.outs)
        return _same(op)

    def _carry(self, op: OpNode) -> Strategy:
        """The strategy of a carry or of a choice's result: all of it lies as what varies most."""
        status = self._status(op)
        if status != "loop":
            return self._whole(op, is_late=status == "late")
        late = self._late(op)
        if late:
            raise _NeededEarly(op, late[0])

        given = [self._here(op, tensor) for tensor in op.ins]
        if op.kind == "carry_in":
            given.append(self.entering.get(op.id, given[0]))
        if op.kind == "carry_out":
            given = [self.home[self.graph.ops[self.graph.loop_carries[op.id]].outs[0].id]]
        placement = self._joined(op, given)
        return Strategy((placement,) * len(op.ins), (placement,) * len(op.outs))

    def _joined(self, op: OpNode, given: Iterable[Placement]) -> Placement:
        """The one placement among `given` that is not whole; whole, if there is none."""
        varying = list(dict.fromkeys(placement for placement in given if placement.varying_axes))
        if len(varying) > 1:
            raise BatchNotCut(
                f"{op.kind} ({op.source}) passes on values that hold the batch in different ways "
                f"({', '.join(map(str, varying))}), so the batch cannot be cut into micro-batches"
            )
        return varying[0] if varying else Placement.replicated(op.outs[0].ndim)

    def _promote(self) -> None:
        """Has carries of loops go in as what comes round lies."""
        for leaving, carried in self.graph.loop_carries.items():
            entering = self.graph.ops[carried]
            around = self._here(self.graph.ops[leaving], self.graph.ops[leaving].ins[0])
            held = self.strategies[carried].outs[0]
            if self._status(entering) == "loop" and around.varying_axes and around != held:
                self.entering[carried] = self._joined(self.graph.ops[leaving], (around, held))


def _same(op: OpNode) -> Strategy:
    ins, outs = (
        tuple(Placement.replicated(tensor.ndim) for tensor in side) for side in (op.ins, op.outs)
    )
    return Strategy(ins, outs)


def _cheapest(
    op: OpNode, options: Iterable[Strategy], ins: tuple[Placement, ...]
) -> Strategy | None:
    """The strategy that takes the operands as they lie, with the fewest elements cut or masked for it."""
    found: tuple[float, Strategy] | None = None
    for strategy in options:
        price = _price(op, strategy, ins)
        if price is not None and (found is None or price < found[0]):
            found = price, strategy
    return None if found is None else found[1]


def _price(op: OpNode, strategy: Strategy, ins: tuple[Placement, ...]) -> float | None:
    """The elements that are cut (one each) or masked (three each); None where an operand lies otherwise."""
    total = 0.0
    for tensor, have, want in zip(op.ins, ins, strategy.ins, strict=True):
        if have == want:
            continue
        if have.varying_axes:
            return None
        total += prod(tensor.shape) * (3 if want.unreduced else 1)
    return total


def _gains(op: OpNode, strategy: Strategy | None, ins: tuple[Placement, ...]) -> bool:
    """Whether sums had better go on through `op` in the loop: it makes fewer or wider numbers of them, and of nothing
    else that would be masked.
    """
    if strategy is None:
        return False
    masked = [
        tensor
        for tensor, have, want in zip(op.ins, ins, strategy.ins, strict=True)
        if want.unreduced and not have.unreduced and tensor.literal is None
    ]
    summed = [t for t, have in zip(op.ins, ins, strict=True) if have.unreduced]

    if masked or not all(out.unreduced for out in strategy.outs):
        return False
    if op.kind == "convert_element_type" and _is_wider(op.outs[0], summed[0]):
        return True
    return sum(t.size_bytes for t in op.outs) < sum(t.size_bytes for t in summed)


def _is_wider(after: TensorInfo, before: TensorInfo) -> bool:
    kinds = {np.dtype(before.dtype).kind, np.dtype(after.dtype).kind}
    return kinds <= set("fV") and after.itemsize > before.itemsize
