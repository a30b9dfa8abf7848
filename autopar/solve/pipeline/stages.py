"""The stages in order: messages, then what closes the gap that they leave, each where it applies and is switched on.

To add a technique: a file with a `SolveStage`, a switch in `options`, and an entry here.
"""

from __future__ import annotations

import math

from autopar.solve.pipeline import closing, messages
from autopar.solve.pipeline.stage import (
    Bracket,
    Search,
    SolveStage,
    SolveState,
    edge_entries,
    run_stages,
)
from autopar.solve.problem.incumbent import Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Problem
from autopar.solve.trws.ascent import Answer, Ascent, is_closed

STAGES: tuple[SolveStage[SolveState], ...] = (
    messages.FIRST_CHOICE,
    messages.MESSAGES,
    closing.CROSSOVER_ELIMINATED,
    closing.FULLY_REDUCED,
    closing.FIXED_POINT,
    closing.FEW_ANNEALED,
    closing.CROSSOVER,
    closing.CROSSOVER_ANNEALED,
    closing.CROSSOVER_CLOSE,
    closing.NODE_MERGING,
    messages.LATE_FIRST_CHOICE,
    closing.LAST_CROSSOVER,
    closing.ANNEALING_NEAR,
    closing.ANNEALING,
    closing.ROUNDS,
)


def closed_by_messages(
    problem: Problem,
    options: SolveOptions,
    watch: Watch,
    upper: float,
    depth: int,
    rest: Search,
    ascent: Ascent | None,
) -> Answer:
    """The best choice that costs less than `upper`, and a bound on all that do, after all stages.

    `rest` searches what they leave. `ascent`: the messages to begin with.
    """
    # of few layers a choice is no choice yet
    is_first = ascent is None and upper == watch.objective == math.inf
    is_free = not problem.usages and edge_entries(problem) <= options.max_total_entries
    ascent = ascent or messages.ascent_of(problem, options, rough=is_free)
    known = Bracket(Answer(None, math.inf, -math.inf), -math.inf, upper, watch)
    return _answer(SolveState(problem, options, known, ascent, rest, _answer, depth, is_first))


def _answer(state: SolveState) -> Answer:
    """What is known after all stages, as an answer."""
    known = run_stages(STAGES, state).known
    return known.closed() if is_closed(known.low, known.cutoff) else known.answer()
