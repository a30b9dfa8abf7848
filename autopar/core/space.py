"""Space: for every variable of a plan, what it may be chosen from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.strategy import Strategy


@dataclass(frozen=True, eq=False)
class Space:
    """The candidates for inputs and outputs (by position), operators and copies (by id) on one mesh.

    A carried output has no candidates of its own: it takes its input's placement (`carry` maps output position to
    input position). So has a literal output, which is replicated; and a loop's carry_out, which leaves its value where
    its carry_in puts it (`loop_carries` maps one's id to the other's).
    Operators with equal signatures should share the same tuple of strategies.
    """

    mesh: DeviceMesh
    inputs: tuple[tuple[Placement, ...], ...]
    strategies: tuple[tuple[Strategy, ...], ...]
    copies: tuple[tuple[Placement, ...], ...]
    outputs: tuple[tuple[Placement, ...], ...]
    carry: tuple[tuple[int, int], ...] = ()
    loop_carries: tuple[tuple[int, int], ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of candidates of every variable: inputs, operators, copies, outputs; of those that have a choice.

        Inputs and copies always have one.
        """
        strategies, outputs = ([c for c in side if c] for side in (self.strategies, self.outputs))
        return tuple(len(c) for c in (*self.inputs, *strategies, *self.copies, *outputs))

    @cached_property
    def operator_variables(self) -> dict[int, int]:
        """The variable of each operator, by id, in the order of `counts`; a carry_out's is that of its carry_in."""
        own = [op for op, strategies in enumerate(self.strategies) if strategies]
        found = {op: len(self.inputs) + n for n, op in enumerate(own)}
        return found | {op: found[entering] for op, entering in self.loop_carries}

    @property
    def copy_variables(self) -> range:
        """The variables of the copies."""
        first = len(self.inputs) + sum(1 for candidates in self.strategies if candidates)
        return range(first, first + len(self.copies))

    @cached_property
    def output_variables(self) -> dict[int, int]:
        """The variable of each output, by position; a carried one's is its input's. Literals have none."""
        first = len(self.counts) - sum(1 for candidates in self.outputs if candidates)
        free = [position for position, candidates in enumerate(self.outputs) if candidates]
        return {position: first + n for n, position in enumerate(free)} | dict(self.carry)

    def stage(self, choice: Sequence[int]) -> Stage:
        """The stage that takes candidate `choice[i]` for variable i, in the order of `counts`."""
        rest = iter(choice)
        inputs = tuple(candidates[next(rest)] for candidates in self.inputs)
        chosen = [candidates[next(rest)] if candidates else None for candidates in self.strategies]
        entering = dict(self.loop_carries)
        strategies = tuple(s or _followed(op, chosen[entering[op]]) for op, s in enumerate(chosen))
        copies = tuple(candidates[next(rest)] for candidates in self.copies)
        carried = dict(self.carry)
        outputs = tuple(
            candidates[next(rest)]
            if candidates
            else inputs[carried[i]]
            if i in carried
            else Placement(())
            for i, candidates in enumerate(self.outputs)
        )

        return Stage(self.mesh, inputs, strategies, copies, outputs)


def carried_out(entering: Strategy) -> Strategy:
    """The strategy of a carry_out whose carry_in has the strategy `entering`."""
    return Strategy(entering.outs, entering.outs, entering.factors, entering.split)


def _followed(op: int, entering: Strategy | None) -> Strategy:
    if entering is None:
        raise ValueError(
            f"operator {op} has no strategies, and neither has the one that it follows"
        )
    return carried_out(entering)
