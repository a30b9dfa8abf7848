"""Random feasible plans: of all there are, or such that neighbours mostly agree."""

from __future__ import annotations

import random
from collections.abc import Sequence

from autopar.core.dataflow import Copy
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.space import Space, carried_out
from autopar.core.strategy import Strategy
from tests.equivalence.cases import Case


def uniform_plan(space: Space, seed: int) -> Stage:
    """Every variable takes any of its candidates."""
    draw = random.Random(seed)
    return space.stage([draw.randrange(count) for count in space.counts])


def local_plan(case: Case, space: Space, seed: int, agreement: float = 0.7) -> Stage:
    """With probability `agreement` a variable takes what changes the fewest placements, else any of its candidates."""
    return _LocalPlan(case, space, random.Random(seed), agreement).stage()


class _LocalPlan:
    """One drawing, in program order: where every tensor and copy is so far."""

    def __init__(self, case: Case, space: Space, draw: random.Random, agreement: float) -> None:
        self.graph, self.flow, self.space = case.graph, case.flow, space
        self.draw, self.agreement = draw, agreement
        self.made: dict[int, Placement] = {}
        self.copied: dict[int, Placement] = {}
        self.source = {(use.op, use.position): copy for use, copy in case.flow.source.items()}

    def stage(self) -> Stage:
        inputs = tuple(map(self.draw.choice, self.space.inputs))
        self.made |= {tensor.id: p for tensor, p in zip(self.graph.inputs, inputs, strict=True)}
        stored = {copy.tensor.id: copy for copy in self.flow.copies if copy.stored}
        strategies: list[Strategy] = []
        for op in self.graph.ops:
            for copy in self.flow.copies:
                if not copy.stored and copy.start == op.id:
                    self._copy(copy)
            reads = [self._read(op.id, n, t.id) if t.ndim else None for n, t in enumerate(op.ins)]
            entering = self.graph.loop_carries.get(op.id)
            own = None if entering is None else carried_out(strategies[entering])
            strategy = own or self._strategy(self.space.strategies[op.id], reads)
            strategies.append(strategy)
            for tensor, placement in zip(op.outs, strategy.outs, strict=True):
                self.made[tensor.id] = placement
                if tensor.id in stored:
                    self._copy(stored[tensor.id])
        copies = tuple(self.copied[copy.id] for copy in self.flow.copies)
        carried = dict(self.space.carry)
        outputs = tuple(
            inputs[carried[n]] if n in carried else self._output(n, candidates)
            for n, candidates in enumerate(self.space.outputs)
        )
        return Stage(self.space.mesh, inputs, tuple(strategies), copies, outputs)

    def _read(self, op: int | None, position: int, tensor: int) -> Placement:
        copy = self.source[op, position]
        return self.made[tensor] if copy is None else self.copied[copy]

    def _copy(self, copy: Copy) -> None:
        source = self.made[copy.tensor.id] if copy.source is None else self.copied[copy.source]
        self.copied[copy.id] = self._near(self.space.copies[copy.id], source)

    def _output(self, position: int, candidates: Sequence[Placement]) -> Placement:
        tensor = self.graph.outputs[position]
        return (
            self._near(candidates, self._read(None, position, tensor.id))
            if candidates
            else Placement(())
        )

    def _near(self, candidates: Sequence[Placement], source: Placement) -> Placement:
        agrees = source in candidates and self.draw.random() < self.agreement
        return source if agrees else self.draw.choice(candidates)

    def _strategy(
        self, candidates: Sequence[Strategy], reads: Sequence[Placement | None]
    ) -> Strategy:
        if self.draw.random() >= self.agreement:
            return self.draw.choice(candidates)
        agreeing = [sum(a == b for a, b in zip(s.ins, reads, strict=True)) for s in candidates]
        return self.draw.choice(
            [s for s, n in zip(candidates, agreeing, strict=True) if n == max(agreeing)]
        )
