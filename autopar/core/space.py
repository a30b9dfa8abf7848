"""Space: for every variable of a plan, what it may be chosen from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.strategy import Strategy


@dataclass(frozen=True, eq=False)
class Space:
    """The candidates for inputs and outputs (by position), operators and copies (by id) on one mesh.

    A carried output has no candidates of its own: it takes its input's placement (`carry` maps output position to
    input position). So has a literal output, which is replicated.
    Operators with equal signatures should share the same tuple of strategies.
    """

    mesh: DeviceMesh
    inputs: tuple[tuple[Placement, ...], ...]
    strategies: tuple[tuple[Strategy, ...], ...]
    copies: tuple[tuple[Placement, ...], ...]
    outputs: tuple[tuple[Placement, ...], ...]
    carry: tuple[tuple[int, int], ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of candidates of every variable: inputs, operators, copies, then outputs that have a choice."""
        outputs = tuple(candidates for candidates in self.outputs if candidates)
        return tuple(len(c) for c in (*self.inputs, *self.strategies, *self.copies, *outputs))

    def stage(self, choice: Sequence[int]) -> Stage:
        """The stage that takes candidate `choice[i]` for variable i, in the order of `counts`."""
        rest = iter(choice)
        inputs = tuple(candidates[next(rest)] for candidates in self.inputs)
        strategies = tuple(candidates[next(rest)] for candidates in self.strategies)
        copies = tuple(candidates[next(rest)] for candidates in self.copies)
        carried = dict(self.carry)
        outputs = tuple(
            candidates[next(rest)] if candidates else inputs[carried[i]] if i in carried else Placement(())
            for i, candidates in enumerate(self.outputs)
        )
        return Stage(self.mesh, inputs, strategies, copies, outputs)
