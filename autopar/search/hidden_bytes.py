"""Hidden bytes: what programs hold that the Problem does not count, by time, as learnt from programs over a limit.

A program holds the buffers of redistributions and buckets at some times only. Where one exceeds the limit, what it
holds at its peak beside the bytes counted is counted there from then on: so other choices are looked for, and all
other times keep their room. It is counted for the strategies of the operator that runs which want its operands where
the chosen one does. The others are taken to hold the least that some were seen to, as long as that leaves a choice.
All this says nothing of other choices, so it proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from autopar.core.program import Compute
from autopar.search.limited_solve import LimitedSolve
from autopar.search.task import Planned
from autopar.solve import Problem, Usage
from autopar.solve.problem.problem import derived, usage_over_time

Kind = tuple[int, ...]
"""Strategies of one variable that are taken to hold the same."""


@dataclass(eq=False)
class HiddenBytes:
    """The bytes learnt, by the Problem's time, a variable, and a kind of its strategies.

    If it `guesses`, kinds that are not known are taken to hold the least of those that are.
    """

    attempt: LimitedSolve
    guesses: bool = True
    learnt: dict[tuple[int, int], dict[Kind, float]] = field(
        default_factory=dict[tuple[int, int], dict[Kind, float]], init=False
    )

    def learn(self, planned: Planned, limit: float) -> None:
        """Counts what the program of `planned` hides at its peak, if that is above `limit`: more than was counted.

        Not at other times above it: what hides little there may be kept by a cheaper choice.
        """
        assert planned.solution is not None
        choice = planned.solution.choice
        held = self._held(planned)
        time = max(held, key=lambda at: held[at])
        if held[time] <= limit:
            return
        counted = usage_over_time(self.attempt.problem(0.0), choice)
        node, kinds = self._kinds(time)
        known = self.learnt.setdefault((time, node), {})
        kind = next(kind for kind in kinds if choice[node] in kind)
        hidden = held[time] - (float(counted[time]) if time < len(counted) else 0.0)
        known[kind] = max(hidden, known.get(kind, 0.0) + 1)

    def stop_guessing(self) -> bool:
        """From now on kinds that are not known hold nothing; whether one was taken to hold something."""
        guessed = self.guesses and bool(self.learnt)
        self.guesses = False
        return guessed

    def problem(self, limit: float) -> Problem:
        """The Problem within a limit, what was learnt counted."""
        whole = self.attempt.problem(limit)
        return derived(whole.node_costs, whole.edges, (*whole.usages, *self._usages(whole)), limit)

    def _held(self, planned: Planned) -> dict[int, float]:
        """The most that a program holds at the Problem's times: an instruction's is that of the operator it serves.

        Where the compiler sets aside more than is alive, it does so all along.
        """
        held = np.array(planned.account.held_bytes, dtype=np.float64)
        peak = planned.account.peak_memory_bytes
        held += peak - held.max(initial=0.0)
        times = self.attempt.times_of(planned)
        served = len(planned.graph.ops)
        found: dict[int, float] = {}
        for at in reversed(range(len(held))):
            instruction = planned.program.instructions[at]
            served = instruction.op.id if isinstance(instruction, Compute) else served
            found[times[served]] = max(float(held[at]), found.get(times[served], 0.0))
        return found or {times[served]: float(peak)}

    def _usages(self, problem: Problem) -> Iterator[Usage]:
        for (time, node), known in self.learnt.items():
            sizes = np.zeros(problem.counts[node])
            unknown = min(known.values()) if self.guesses else 0.0
            for kind in self._kinds(time)[1]:
                sizes[[*kind]] = known.get(kind, unknown)
            yield Usage(node, time, time + 1, sizes)

    def _kinds(self, time: int) -> tuple[int, tuple[Kind, ...]]:
        """The variable of the operator at a time, and the kinds of its strategies; where there is none, any, all alike.

        What is absent holds nothing.
        """
        space = self.attempt.ground.space
        strategies = space.strategies[time] if time < len(space.strategies) else ()
        if not strategies:
            return 0, (tuple(range(self.attempt.problem(0.0).counts[0])),)
        kinds: dict[object, list[int]] = {}
        for n, strategy in enumerate(strategies):
            kinds.setdefault(strategy.ins, []).append(n)
        return self.attempt.variable_of(time), tuple(map(tuple, kinds.values()))
