"""The stages in order: messages, then what closes the gap that they leave, each where it applies and is switched on.

To add a technique: a file with a `SolveStage`, a switch in `options`, and an entry here.
"""

from __future__ import annotations

from autopar.solve.pipeline import closing, messages
from autopar.solve.pipeline.stage import SolveStage, SolveState

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
