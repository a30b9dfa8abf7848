"""Few periods: a problem of few of the equal layers, solved beside the whole, which begins at its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autopar.solve.periodic.shortened import Shortened, shortened
from autopar.solve.problem.incumbent import Apart, Watch
from autopar.solve.problem.problem import Floats, Problem, objective
from autopar.solve.trws.arrays import per_edge
from autopar.solve.trws.ascent import Answer, Ascent, better, is_closed

_MORE, _LITTLE = 3.0, 1e-4  # times as much, and a share of the cost: gaps that are alike


@dataclass(frozen=True, eq=False)
class Few:
    """A problem of few of the equal layers beside the whole, its ascent, and its best choice.

    It has `more` positions than have to stay.
    """

    whole: Ascent
    short: Shortened
    ascent: Ascent
    best: Answer
    more: int = 0

    @property
    def is_proven(self) -> bool:
        """Whether its optimum is known."""
        return is_closed(self.best.bound, self.best.objective)

    def searched(self, search: Callable[[Ascent], Answer]) -> Few:
        """With what a search that goes on from its messages finds."""
        return replace(self, best=search(self.ascent))

    @cached_property
    def messages(self) -> list[tuple[Floats, Floats]]:
        """Its messages by edge."""
        return per_edge(self.ascent.dual.flat, self.ascent.held.messages)

    def begin(self) -> None:
        """Has the whole's ascent begin at its messages, tiled."""
        self.whole.start_from(self.tiled_messages())

    def tiled_messages(self) -> Floats:
        """Its messages, tiled over the whole."""
        return self.short.messages(self.whole.dual.flat, self.messages)

    def is_like(self, gap: float, more: float = _MORE) -> bool:
        """Whether a gap that its messages leave of the whole is what its length makes of its own, `more` times.

        If not, more layers are what few are not: where layers and ends want different strategies, it is the number of
        layers that decides, and messages differ from one layer to the next.
        """
        own = abs(self.best.objective - self.ascent.held.bound)
        times = len(self.whole.problem.node_costs) / len(self.short.problem.node_costs)
        return gap <= more * times * own + _LITTLE * abs(self.whole.held.bound)

    def tiled(self) -> Answer:
        """Its best choice, tiled over the whole."""
        if self.best.choice is None:
            return self.best
        choice = self.short.choice(self.best.choice)
        return Answer(choice, objective(self.whole.problem, choice), -np.inf)

    def annealed(self, watch: Watch) -> Few:
        """With a better choice, if annealing finds one."""
        if self.best.choice is None:
            return self
        near = self.ascent.anneal(self.best.objective, self.best.choice, Apart(watch))
        return replace(self, best=better(self.best, near))


def few_of(
    whole: Ascent, ascent_of: Callable[[Problem], Ascent], search: Callable[[Ascent], Answer], fewer: Few | None = None
) -> Few | None:
    """Few of the equal layers, searched; about twice as many as `fewer` has. None if too little repeats."""
    more = 0 if fewer is None else fewer.more + len(fewer.short.problem.node_costs)
    short = shortened(whole.problem, whole.dual.flat, whole.dual.order, more)
    if short is None:
        return None
    ascent = ascent_of(short.without_ties())
    best = search(ascent)
    return Few(whole, short, ascent, best, more)
