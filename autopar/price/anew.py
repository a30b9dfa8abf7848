"""Anew: what is held because a compiler may compute a tensor in each of its readers rather than keep it.

The account of a program (`passes.account`) counts both: the tensor, and the operands of the operator that makes it,
until its last reader. Here that is counted where it is sure: under a stored copy that is left as its operator made it.
An operand that stays in registers holds the operands it is made of, or, where it is redistributed on its way, itself:
the lesser counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autopar.core.dataflow import Copy, Dataflow
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.regions import BOUNDARY
from autopar.price.columns import Column
from autopar.price.held import Held
from autopar.price.work import passes_sums, recomputed

Floats = NDArray[np.float64]
Placed = Callable[[int, Literal["ins", "outs"], int], Column]


@dataclass(frozen=True, eq=False)
class Longer:
    """What the operands of a copy's operator take besides, start <= t < stop, where it is left as it is made.

    `by_placement` are the bytes by the number of its placement.
    """

    copy: int
    start: int
    stop: int
    by_placement: Mapping[int, float]


@dataclass(eq=False)
class Anew:
    """The work of finding all `Longer`s. `placed` gives the placements of an operand or result of each strategy."""

    graph: OpGraph
    flow: Dataflow
    held: Held
    in_memory: Collection[int]
    placed: Placed
    _taken: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        graph = self.graph
        self.made = {t.id: (op, k) for op in graph.ops for k, t in enumerate(op.outs)}
        self.fixed = {t.id for t in (*graph.inputs, *graph.outputs)}

    def longer(self) -> Iterator[Longer]:
        """All of them: the tensors that are read last come first, and what they hold nobody else counts."""
        again = recomputed(self.graph)
        copies = [copy for copy in self.flow.copies if copy.stored and copy.tensor.id in again]
        for copy in sorted(copies, key=lambda copy: (-self.held.sure[copy.tensor.id], copy.id)):
            op, position = self.made[copy.tensor.id]
            if copy.tensor.id not in self.fixed and op.phase != "update" and not self._may_sink(op):
                yield from self._of(copy, op, position)

    def _of(self, copy: Copy, op: OpNode, position: int) -> Iterator[Longer]:
        stop, made = self.held.sure[copy.tensor.id], self.placed(op.id, "outs", position)
        found: dict[int, Floats] = {}
        for operand, tensor in enumerate(op.ins):
            start, sizes = self._operand(op, operand, tensor, stop)
            start = max(start, op.id + 1)
            if start < stop and sizes.any():
                found[start] = found.get(start, 0.0) + sizes
        for start, sizes in found.items():
            yield Longer(copy.id, start, stop, _least(made, sizes))

    def _operand(self, op: OpNode, position: int, tensor: TensorInfo, stop: int) -> tuple[int, Floats]:
        """From when on an operand's memory is counted here, and its bytes under each strategy of `op`."""
        placed = self.placed(op.id, "ins", position)
        none = stop, np.zeros(len(placed))
        if tensor.literal is not None or tensor.id in self.fixed or tensor.id in self._taken:
            return none
        maker, result = self.made[tensor.id]
        if maker.kind in BOUNDARY or maker.region != op.region:
            return none
        whole = placed.local_bytes(tensor.size_bytes)
        if tensor.id in self.in_memory:
            if self.held.gone[tensor.id] >= stop:
                return none
            self._taken.add(tensor.id)
            return self.held.gone[tensor.id], whole
        behind = [self._operand(maker, n, t, stop) for n, t in enumerate(maker.ins)]
        counted = [(start, sizes) for start, sizes in behind if start < stop]
        if not counted:
            return none
        total = np.sum([sizes for _, sizes in counted], axis=0)
        least = _least(self.placed(maker.id, "outs", result), total)
        kept = np.array([least.get(number, np.inf) for number in placed.numbers.tolist()])
        return max(start for start, _ in counted), np.minimum(whole, kept)

    def _may_sink(self, op: OpNode) -> bool:
        """Whether a reduction of an operand may come behind `op`: then nothing is left as it is made."""
        return passes_sums(op) and any(self._may_be_unreduced(op, n) for n in range(len(op.ins)))

    def _may_be_unreduced(self, op: OpNode, position: int) -> bool:
        tensor = op.ins[position]
        if tensor.id not in self.made:
            return False
        maker, result = self.made[tensor.id]
        return any(p.unreduced for p in self.placed(maker.id, "outs", result).distinct)


def _least(made: Column, sizes: Floats) -> dict[int, float]:
    """For the number of each placement the least of the sizes of strategies that make it."""
    found: dict[int, float] = {}
    for number, size in zip(made.numbers.tolist(), sizes.tolist(), strict=True):
        found[number] = min(size, found.get(number, np.inf))
    return found
