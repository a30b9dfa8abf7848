"""Beside: what programs hold that the Problem does not count, by time, as learnt from programs that exceed a limit.

A program holds the buffers of redistributions and buckets at some times only. Where one exceeds the limit, what it
holds there beside the bytes counted is counted at that time from then on, whatever is chosen: so other choices are
looked for, and all other times keep their room. That says nothing of other choices, so it proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autopar.passes.program import Compute
from autopar.search.attempt import Attempt
from autopar.search.task import Planned
from autopar.solve import Problem, Usage
from autopar.solve.problem import derived


@dataclass(eq=False)
class Beside:
    """The bytes learnt, by the Problem's time."""

    attempt: Attempt
    limit: int
    bytes_at: dict[int, float] = field(default_factory=dict[int, float], init=False)

    def learn(self, planned: Planned) -> None:
        """Counts what the program of `planned` holds at its peak beside the bytes counted there: more than before."""
        assert planned.solution is not None
        choice = planned.solution.choice
        time = self.attempt.time_of(time_of_peak(planned), planned)
        lives = (use for use in self.attempt.problem(0.0).usages if use.start <= time < use.stop)
        counted = sum(float(use.size_bytes[choice[use.node]]) for use in lives)
        held = planned.account.peak_memory_bytes - counted
        self.bytes_at[time] = max(held, self.bytes_at.get(time, 0.0) + 1)

    def problem(self) -> Problem:
        """The Problem within the limit, what was learnt counted."""
        whole = self.attempt.problem(float(self.limit))
        always = (Usage(0, time, time + 1, np.full(whole.counts[0], size)) for time, size in self.bytes_at.items())
        return derived(whole.node_costs, whole.edges, (*whole.usages, *always), whole.usage_limit)


def time_of_peak(planned: Planned) -> int:
    """The operator, of the graph that the plan is of, at which or before which its program peaks."""
    program, at = planned.program, max(0, planned.account.peak_at)
    following = (i.op.id for i in program.instructions[at:] if isinstance(i, Compute))
    return next(following, len(planned.graph.ops))
