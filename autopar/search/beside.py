"""Beside: what programs hold that the Problem does not count, by time, as learnt from programs that exceed a limit.

A program holds the buffers of redistributions and buckets at some times only. Where one exceeds the limit, what it
holds there beside the bytes counted is counted at that time from then on: so other choices are looked for, and all
other times keep their room. First whatever is chosen. That can leave nothing, as most of it depends on where operands
are wanted: then by the strategies of the operator that runs, those that want them where the chosen one does; the
others are taken to hold as much once some such kinds do, as long as that leaves a choice. All this says nothing of
other choices, so it proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from autopar.core.program import Compute
from autopar.search.attempt import Attempt
from autopar.search.task import Planned
from autopar.solve import Problem, Usage
from autopar.solve.problem.problem import derived

_KNOWN = 3  # kinds of strategies at one time

Kind = tuple[int, ...]
"""Strategies of one variable that are taken to hold the same."""


@dataclass(eq=False)
class Beside:
    """The bytes learnt, by the Problem's time, a variable, and a kind of its strategies.

    If it `guesses`, kinds that are not known are taken to hold the least of those that are, where these are some.
    """

    attempt: Attempt
    limit: int
    by_strategy: bool = False
    guesses: bool = True
    learnt: dict[tuple[int, int], dict[Kind, float]] = field(
        default_factory=dict[tuple[int, int], dict[Kind, float]], init=False
    )

    def learn(self, planned: Planned) -> None:
        """Counts what the program of `planned` holds at its peak beside the bytes counted there: more than before."""
        assert planned.solution is not None
        choice = planned.solution.choice
        time = self.attempt.time_of(time_of_peak(planned), planned)
        lives = (use for use in self.attempt.problem(0.0).usages if use.start <= time < use.stop)
        counted = sum(float(use.size_bytes[choice[use.node]]) for use in lives)
        held = planned.account.peak_memory_bytes - counted
        node, kinds = self._kinds(time)
        known = self.learnt.setdefault((time, node), {})
        kind = next(kind for kind in kinds if choice[node] in kind)
        known[kind] = max(held, known.get(kind, 0.0) + 1)

    def stop_guessing(self) -> bool:
        """From now on kinds that are not known hold nothing; whether one was taken to hold something."""
        guessed = self.guesses and any(len(known) >= _KNOWN for known in self.learnt.values())
        self.guesses = False
        return guessed

    def problem(self) -> Problem:
        """The Problem within the limit, what was learnt counted."""
        whole = self.attempt.problem(float(self.limit))
        return derived(whole.node_costs, whole.edges, (*whole.usages, *self._usages(whole)), whole.usage_limit)

    def _usages(self, problem: Problem) -> Iterator[Usage]:
        for (time, node), known in self.learnt.items():
            sizes = np.zeros(problem.counts[node])
            for kind in self._kinds(time)[1]:
                unknown = min(known.values()) if self.guesses and len(known) >= _KNOWN else 0.0
                sizes[[*kind]] = known.get(kind, unknown)
            yield Usage(node, time, time + 1, sizes)

    def _kinds(self, time: int) -> tuple[int, tuple[Kind, ...]]:
        """The variable of the operator at a time, and the kinds of its strategies; where there is none, any, all alike.

        What is absent holds nothing.
        """
        space = self.attempt.ground.space
        strategies = space.strategies[time] if self.by_strategy and time < len(space.strategies) else ()
        if not strategies:
            return 0, (tuple(range(self.attempt.problem(0.0).counts[0])),)
        kinds: dict[object, list[int]] = {}
        for n, strategy in enumerate(strategies):
            kinds.setdefault(strategy.ins, []).append(n)
        return self.attempt.variable_of(time), tuple(map(tuple, kinds.values()))


def time_of_peak(planned: Planned) -> int:
    """The operator, of the graph that the plan is of, at which or before which its program peaks."""
    program, at = planned.program, max(0, planned.account.peak_at)
    following = (i.op.id for i in program.instructions[at:] if isinstance(i, Compute))
    return next(following, len(planned.graph.ops))
