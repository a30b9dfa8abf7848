"""Variables: the nodes of the Problem, by what they choose: their numbers, placements and bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autopar.core.columns import Column, Columns
from autopar.core.dataflow import Copy, Dataflow, until
from autopar.core.graph import OpGraph, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.space import Space
from autopar.core.strategy import StrategyArrays
from autopar.memory.duplicated import Duplicated, Longer
from autopar.memory.intervals import HeldTimes, held
from autopar.ops.fusion import PLAIN, Fusing, in_memory, other_names, recomputed
from autopar.redistribute.route import Router
from autopar.solve.problem.factored_matrix import Matrix

Floats = NDArray[np.float64]
Placements = tuple[Placement, ...]


Sides = tuple[tuple[Column, ...], tuple[Column, ...]]


@dataclass(eq=False)
class Caches:
    """What assemblies of one space at the same prices have in common, by the identity of what it is made of."""

    mesh: DeviceMesh
    by_placements: dict[int, Column] = field(default_factory=dict[int, Column])
    weights: dict[tuple[int | None, int | None], float] = field(
        default_factory=dict[tuple[int | None, int | None], float]
    )
    layouts: dict[int, StrategyArrays] = field(default_factory=dict[int, StrategyArrays])
    matrices: dict[tuple[object, ...], Matrix] = field(
        default_factory=dict[tuple[object, ...], Matrix]
    )
    arrays: dict[tuple[object, ...], Floats] = field(
        default_factory=dict[tuple[object, ...], Floats]
    )
    costs: dict[tuple[object, ...], Floats] = field(
        default_factory=dict[tuple[object, ...], Floats]
    )
    sides: dict[int, Sides] = field(default_factory=dict[int, Sides])

    def __post_init__(self) -> None:
        self.columns = Columns(self.mesh)


@dataclass(eq=False)
class Variables:
    """What the parts of one assembly share."""

    graph: OpGraph
    flow: Dataflow
    space: Space
    router: Router
    limited: bool
    caches: Caches | None = None
    fusing: Fusing = PLAIN

    def __post_init__(self) -> None:
        graph = self.graph
        space = self.space
        caches = self.caches or Caches(space.mesh)
        self.columns = caches.columns
        self._by_placements = caches.by_placements
        self._known_sides = caches.sides
        self._weights = caches.weights
        self._layouts = caches.layouts
        self._matrices = caches.matrices
        self._arrays = caches.arrays
        self._costs = caches.costs

        own = [op for op, strategies in enumerate(space.strategies) if strategies]
        self.op_node = {op: len(space.inputs) + n for n, op in enumerate(own)}
        self.op_node |= {op: self.op_node[entering] for op, entering in space.loop_carries}
        self.entering = dict(space.loop_carries)
        self.first_copy = len(space.inputs) + len(own)
        first_output = self.first_copy + len(space.copies)
        free = [i for i, candidates in enumerate(space.outputs) if candidates]
        carried = dict(space.carry)
        self.output_node = {i: first_output + n for n, i in enumerate(free)} | carried
        self.input_node = {t.id: n for n, t in enumerate(graph.inputs)}

    @cached_property
    def made_by(self) -> dict[int, tuple[int, int]]:
        """The operator that makes each tensor, by ids, and which of its results it is."""
        return {t.id: (op.id, k) for op in self.graph.ops for k, t in enumerate(op.outs)}

    @cached_property
    def in_memory(self) -> frozenset[int]:
        """The ids of the tensors that take memory of their own."""
        return in_memory(self.graph, self.fusing) - other_names(self.graph, self.fusing)

    @cached_property
    def held(self) -> HeldTimes:
        """How long what is made is surely held."""
        return held(self.graph, self.flow, self.in_memory)

    @cached_property
    def longer(self) -> tuple[Longer, ...]:
        """What operands hold longer than is counted of them elsewhere."""
        return self._anew.longer() if self.limited else ()

    @cached_property
    def _anew(self) -> Duplicated:
        again = recomputed(self.graph, self.fusing)
        return Duplicated(
            self.graph, self.flow, self.held, self.in_memory, again, self._placed, self._once
        )

    @cached_property
    def _held_longer(self) -> frozenset[int]:
        """The stored copies under which something is held longer."""
        return frozenset(longer.copy for longer in self.longer if longer.copy is not None)

    def _copies(self) -> list[tuple[Copy, Placements]]:
        return list(zip(self.flow.copies, self.space.copies, strict=True))

    def _doubled(self, copy: Copy) -> bool:
        return self.limited and (not copy.stored or copy.id in self._held_longer)

    def _placed(self, op: int, side: Literal["ins", "outs"], position: int) -> Column:
        """The placements of an operand or result under each strategy; a carry_out's are those of its carry_in."""
        ins, outs = self._sides[op]
        return (ins if side == "ins" else outs)[position]

    @cached_property
    def _sides(self) -> list[Sides]:
        """The columns of the operands and the results of every operator, made once for those that share strategies."""
        known = self._known_sides
        for strategies in self.space.strategies:
            if strategies and id(strategies) not in known:
                ins, outs = zip(*[(s.ins, s.outs) for s in strategies], strict=True)
                known[id(strategies)] = self._columns_of(ins), self._columns_of(outs)
        found = [known.get(id(strategies), ((), ())) for strategies in self.space.strategies]
        for leaving, entering in self.entering.items():
            found[leaving] = found[entering][1], found[entering][1]
        return found

    def _columns_of(self, sides: Sequence[Placements]) -> tuple[Column, ...]:
        return tuple(self.columns.of(placements) for placements in zip(*sides, strict=True))

    def _candidates(self, placements: Placements) -> Column:
        known = self._by_placements
        if id(placements) not in known:
            known[id(placements)] = self.columns.of(placements)
        return known[id(placements)]

    def _last_use(self, tensor: TensorInfo, default: int = 0) -> int:
        made_in = self.graph.made_in(tensor)
        return max(
            (until(self.graph, made_in, use) for use in self.flow.uses.get(tensor.id, ())),
            default=default,
        )

    def _bytes(self, tensor: TensorInfo, column: Column, doubled: bool = False) -> Floats:
        """The bytes on one device under each candidate; doubled ones are aliases first, which take none."""
        size = self._once(
            (tensor.device_bytes, id(column), "bytes"),
            lambda: column.local_bytes(tensor.device_bytes),
        )
        return self._behind_none(size) if doubled else size

    def _behind_none(self, size: Floats) -> Floats:
        """`size` behind as many zeros."""
        return self._once(
            (id(size), "behind none"), lambda: np.concatenate([np.zeros(len(size)), size])
        )

    def _once(self, key: tuple[object, ...], make: Callable[[], Floats]) -> Floats:
        """What `make` gave for `key` when that was first met: one object, which is kept."""
        found = self._arrays.get(key)
        if found is None:
            found = self._arrays[key] = make()
        return found
