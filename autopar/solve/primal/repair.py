"""Better choices from good ones: repair of the memory limit, and single moves.

No move ever leaves the limit once a choice is within it, and a choice is only replaced by a cheaper one.
"""

from __future__ import annotations

import numpy as np

from autopar.solve.problem.options import PrimalOptions
from autopar.solve.problem.problem import Floats, Problem, objective
from autopar.solve.problem.reduction import Bools, Choice
from autopar.solve.problem.rows import Rows
from autopar.solve.problem.stop import is_up

_MAX_REPAIRS = 300  # moves: what needs more is not repaired by single moves
_MAX_PASSES = 20  # over all nodes: the last of them move next to nothing
_ALL = PrimalOptions()


class LocalSearch:
    """Moves on choices of one problem."""

    def __init__(self, problem: Problem, rows: Rows, options: PrimalOptions = _ALL) -> None:
        self.problem = problem
        self.rows = rows
        self._may_move = options.repair
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
        """The choice after repair and single moves, with its cost; None if it cannot be repaired."""
        if self._may_move and not self.repair(choice):
            return None, np.inf
        if self._may_move:
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

    def repair(self, choice: list[int]) -> bool:
        """Frees memory in the worst row at the least cost a byte, until all fit or nothing helps. True if all fit."""
        if not self.rows.count:
            return True

        for _ in range(_MAX_REPAIRS):
            used = self.rows.used(choice)
            worst = int(used.argmax())
            if used[worst] <= self.rows.limit:
                return True
            found = min(
                (
                    move
                    for v in range(len(choice))
                    if (move := self._relief(v, worst, choice, used)) is not None
                ),
                default=None,
            )
            if found is None or is_up():
                return False
            choice[found[1]] = found[2]

        return self.fits(choice)

    def _relief(
        self, v: int, row: int, choice: list[int], used: Floats
    ) -> tuple[float, int, int] | None:
        """(cost a byte, v, strategy) of the best way for v to use less in a row."""
        mine = [segment for segment in self.rows.of_node[v] if segment.low <= row < segment.high]
        if not mine:
            return None

        freed = mine[0].size_bytes[choice[v]] - mine[0].size_bytes
        useful = (freed > 0) & self.allowed(v, choice, used)
        if not useful.any():
            return None

        costs = self.local_costs(v, choice)
        rise = costs - costs[choice[v]] if np.isfinite(costs[choice[v]]) else costs
        need = max(float(used[row]) - self.rows.limit, 0.0)
        ratio = np.full(len(freed), np.inf)
        ratio[useful] = rise[useful] / np.minimum(freed[useful], need)
        best = int(ratio.argmin())
        return (float(ratio[best]), v, best) if np.isfinite(ratio[best]) else None
