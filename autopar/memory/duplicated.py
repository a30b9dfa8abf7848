"""Anew: what is held because a compiler may compute a tensor in each of its readers rather than keep it.

The account of a program (`memory.account`) counts both: the tensor, and the operands of the operator that makes it,
until its last reader. Here that is counted where it is sure: under a stored copy that is left as its operator made it.
A tensor that stays in registers holds the operands it is made of, or, where it is redistributed on its way, itself:
the lesser counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autopar.core.columns import Column
from autopar.core.dataflow import Dataflow
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.regions import BOUNDARY
from autopar.memory.intervals import HeldTimes
from autopar.ops.traits import is_fusible, passes_sums

Floats = NDArray[np.float64]
Placed = Callable[[int, Literal["ins", "outs"], int], Column]
Once = Callable[[tuple[object, ...], Callable[[], Floats]], Floats]
"""What is made for a key: one object for equal keys, kept, so that keys may have its id."""


@dataclass(frozen=True, eq=False)
class Longer:
    """What operands take, start <= t < stop, beside what is counted of them elsewhere.

    Of an operator (`copy` is None): `sizes` are the bytes under each of its strategies. Of a stored copy that is left
    as `op` makes it: they still are those of the strategies of `op`, the least of those that make a placement counts.
    """

    op: int
    copy: int | None
    start: int
    stop: int
    sizes: Floats


Steps = list[tuple[int, Floats]]
"""Bytes under each strategy from one time on, then from another on, and so forth; nothing before."""
_FRAMES = 4
"""At most so many calls stand in one another for each operator that waits: two functions, each with a list of them."""


@dataclass(eq=False)
class Duplicated:
    """The work of finding all `Longer`s. What is made `again` may be computed in each of its readers, by tensor id.

    `placed` gives the placements of an operand or result of each strategy. `once` keeps the sizes, which equal layers
    share. `may_go` are operators that may not be there, which hold nothing. `gone` says from when on a tensor's memory
    is counted by nobody yet, by its id. `kept` are tensors that are counted elsewhere from then on, if a choice says
    so: from `until` on, when nothing waits for them any longer. `apart` says of a tensor when one operator counts it as
    its own operand, be it kept or made again.
    """

    graph: OpGraph
    flow: Dataflow
    held: HeldTimes
    in_memory: Collection[int]
    again: Collection[int]
    placed: Placed
    once: Once
    may_go: Collection[int] = frozenset()
    kept: Collection[int] = frozenset()
    apart: Mapping[int, int] = field(default_factory=dict[int, int])
    gone: dict[int, int] = field(init=False)
    until: dict[int, int] = field(default_factory=dict[int, int], init=False)

    def __post_init__(self) -> None:
        graph = self.graph
        self.gone = dict(self.held.gone)
        self.made = {t.id: (op, k) for op in graph.ops for k, t in enumerate(op.outs)}
        self.fixed = {t.id for t in (*graph.inputs, *graph.outputs)}
        self.any: dict[int, bool] = {}

    def longer(self) -> tuple[Longer, ...]:
        """All of them: first what waits in registers, then the tensors that are read last come first."""
        with _as_deep_as(len(self.graph.ops)):
            return tuple(self._longer())

    def _longer(self) -> Iterator[Longer]:
        for op in self.graph.ops:
            if (
                op.phase != "update"
                and is_fusible(op)
                and len(op.outs) == 1
                and op.id not in self.may_go
            ):
                yield from self._waiting(op)

        self.until = {tensor: self.gone[tensor] for tensor in self.kept}
        self.gone.update(dict.fromkeys(self.kept, len(self.graph.ops) + 1))
        copies = [copy for copy in self.flow.copies if copy.stored and copy.tensor.id in self.again]
        for copy in sorted(copies, key=lambda copy: (-self.held.sure[copy.tensor.id], copy.id)):
            op, _ = self.made[copy.tensor.id]
            if copy.tensor.id not in self.fixed and op.phase != "update" and not self._may_sink(op):
                yield from self._of(op, copy.id, op.id + 1, self.held.sure[copy.tensor.id])

    def _at_most(self, longer: Longer, tensor: TensorInfo) -> Longer:
        """What waits in registers for its readers is in memory itself where one of these has it redistributed."""
        size = self._bytes(tensor, self.placed(longer.op, "outs", self.made[tensor.id][1]))
        return replace(longer, sizes=self._lesser(longer.sizes, size))

    def _waiting(self, op: OpNode) -> Iterator[Longer]:
        """What an operator holds until its result is read, where that waits in registers for one reader, or else while
        it runs.
        """
        (tensor,) = op.outs
        uses = self.flow.uses.get(tensor.id, ())
        if tensor.id in self.in_memory or len(uses) > 1:
            if any(t.id not in self.in_memory and t.literal is None for t in op.ins):
                yield from self._of(op, None, op.id, op.id + 1)
            return
        for use in uses:  # one, or none that is sure to be there
            if use.region == op.region and self._is_near(op, use.time):
                for longer in self._of(op, None, op.id, use.time):
                    yield self._at_most(longer, tensor)

    def _is_near(self, op: OpNode, time: int) -> bool:
        return self.graph.ops[time].region == op.region if time < len(self.graph.ops) else False

    def _of(self, op: OpNode, copy: int | None, start: int, stop: int) -> Iterator[Longer]:
        """What the operands of `op` hold in this time."""
        steps = self._together(op, stop)
        ends = [*(begin for begin, _ in steps[1:]), stop]
        for (begin, sizes), end in zip(steps, ends, strict=False):
            if max(begin, start) < end and self._is_any(sizes):
                yield Longer(op.id, copy, max(begin, start), end, sizes)

    def _together(self, op: OpNode, stop: int) -> Steps:
        """The bytes of all operands until `stop`, from when on nobody else counts them. They are counted by that."""
        every = [self._operand(op, n, tensor, stop) for n, tensor in enumerate(op.ins)]
        found: Steps = []
        for begin in sorted({begin for steps in every for begin, _ in steps}):
            now = [[sizes for start, sizes in steps if start <= begin] for steps in every]
            found.append((begin, self._sum([sizes[-1] for sizes in now if sizes])))
        return found

    def _operand(self, op: OpNode, position: int, tensor: TensorInfo, stop: int) -> Steps:
        if tensor.literal is not None or tensor.id in self.fixed:
            return []

        maker, result = self.made[tensor.id]
        if maker.kind in BOUNDARY or maker.region != op.region:
            return []

        placed = self.placed(op.id, "ins", position)
        whole = self._bytes(tensor, placed)
        if tensor.id in self.in_memory:
            begin = self.gone[tensor.id]
            self.gone[tensor.id] = max(begin, stop)
            return self._but_apart(tensor.id, begin, stop, whole) if begin < stop else []

        if maker.id in self.may_go:
            return []

        made = self.placed(maker.id, "outs", result)
        return [
            (begin, self._lesser(whole, self._least(made, sizes, placed)))
            for begin, sizes in self._together(maker, stop)
        ]

    def _but_apart(self, tensor: int, begin: int, stop: int, sizes: Floats) -> Steps:
        """These bytes from `begin` on, but none while they are counted `apart`."""
        at = self.apart.get(tensor, stop)
        if not begin <= at < stop:
            return [(begin, sizes)]
        none = self.once((id(sizes), "none"), lambda: np.zeros_like(sizes))
        return [(begin, sizes), (at, none), (at + 1, sizes)][begin == at :]

    def _bytes(self, tensor: TensorInfo, column: Column) -> Floats:
        key = (tensor.device_bytes, id(column), "bytes")
        return self.once(key, lambda: column.local_bytes(tensor.device_bytes))

    def _lesser(self, a: Floats, b: Floats) -> Floats:
        return self.once((id(a), id(b), "lesser"), lambda: np.minimum(a, b))

    def _least(self, made: Column, sizes: Floats, wanted: Column) -> Floats:
        return self.once(
            (id(made), id(sizes), id(wanted), "least"), lambda: least(made, sizes, wanted)
        )

    def _sum(self, sizes: Sequence[Floats]) -> Floats:
        return self.once((*map(id, sizes), "sum"), lambda: np.sum(sizes, axis=0))

    def _is_any(self, sizes: Floats) -> bool:
        known = self.any.get(id(sizes))
        if known is None:
            known = self.any[id(sizes)] = bool(sizes.any())
        return known

    def _may_sink(self, op: OpNode) -> bool:
        """Whether a reduction of an operand may come behind `op`: then nothing is left as it is made."""
        return passes_sums(op) and any(self._may_be_unreduced(tensor) for tensor in op.ins)

    def _may_be_unreduced(self, tensor: TensorInfo) -> bool:
        if tensor.id not in self.made:
            return False
        maker, result = self.made[tensor.id]
        return any(p.unreduced for p in self.placed(maker.id, "outs", result).distinct)


@contextmanager
def _as_deep_as(count: int) -> Generator[None]:
    """So many operators may wait for one another in registers: calls of Python alone take none of the stack of C."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + _FRAMES * count)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def least(made: Column, sizes: Floats, wanted: Column) -> Floats:
    """For each wanted placement the least of the sizes of strategies that make it; `inf` where none does."""
    found: dict[int, float] = {}
    for number, size in zip(made.numbers.tolist(), sizes.tolist(), strict=True):
        found[number] = min(size, found.get(number, np.inf))
    return np.array([found.get(number, np.inf) for number in wanted.numbers.tolist()])
