"""Single moves: nodes of a choice within the limit go to cheaper strategies that fit, one after another.

No move leaves the limit, and a choice is only replaced by a cheaper one.
"""

from __future__ import annotations

import numpy as np

from autopar.solve.problem.options import PrimalOptions
from autopar.solve.problem.problem import Floats, Problem, objective
from autopar.solve.problem.reduction import Bools, Choice
from autopar.solve.problem.rows import Rows
from autopar.solve.problem.stop import is_up

_MAX_PASSES = 20  # over all nodes: the last of them move next to nothing


class SingleMoves:
    """Moves on choices of one problem."""

    def __init__(self, problem: Problem, rows: Rows, options: PrimalOptions) -> None:
        self.problem = problem
        self.rows = rows
        self._may_move = options.single_moves
        self.near: list[list[tuple[int, Floats]]] = [[] for _ in problem.node_costs]
        for edge in problem.edges:
            self.near[edge.u].append((edge.v, edge.cost.T))
            self.near[edge.v].append((edge.u, edge.cost))

    def fits(self, choice: Choice | list[int]) -> bool:
        """Whether the choice is within the limit in every row."""
        return not self.rows.count or bool((self.rows.used(choice) <= self.rows.limit).all())

    def cost(self, choice: Choice | list[int]) -> float:
        """The choice's cost; inf outside the limit."""
        return objective(self.problem, tuple(choice)) if self.fits(choice) else np.inf

    def improve(self, choice: list[int]) -> tuple[Choice | None, float]:
        """The choice after single moves, with its cost; None if that is infinite, or it is not within the limit."""
        if self._may_move and self.fits(choice):
            self.descend(choice)
        value = self.cost(choice)
        return (tuple(choice), value) if np.isfinite(value) else (None, np.inf)

    def local_costs(self, v: int, choice: list[int]) -> Floats:
        """What each strategy of v costs, its neighbours as they are."""
        total = self.problem.node_costs[v]
        for u, cost in self.near[v]:
            total = total + cost[choice[u]]
        return total

    def descend(self, choice: list[int]) -> None:
        """Moves single nodes to cheaper strategies that fit, until none is left."""
        used = self.rows.used(choice)
        for _ in range(_MAX_PASSES):
            moved = False
            for v in range(len(choice)):
                costs = self.local_costs(v, choice)
                costs = np.where(self.allowed(v, choice, used), costs, np.inf)
                best = int(costs.argmin())
                if costs[best] < costs[choice[v]]:
                    self.move(v, best, choice, used)
                    moved = True
            if not moved or is_up():
                return

    def allowed(self, v: int, choice: list[int], used: Floats) -> Bools:
        """The strategies of v that fit, or use no more than the one it has."""
        result = np.ones(len(self.problem.node_costs[v]), dtype=bool)
        for segment in self.rows.of_node[v]:
            mine = segment.size_bytes[choice[v]]
            worst = float(used[segment.low : segment.high].max()) - mine
            result &= (segment.size_bytes + worst <= self.rows.limit) | (segment.size_bytes <= mine)
        return result

    def move(self, v: int, s: int, choice: list[int], used: Floats) -> None:
        """Gives v the strategy s."""
        for segment in self.rows.of_node[v]:
            used[segment.low : segment.high] += (
                segment.size_bytes[s] - segment.size_bytes[choice[v]]
            )
        choice[v] = s
