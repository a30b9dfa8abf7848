"""Equally: an attempt in which what repeats is placed alike: its Problem is the quotient, its plans are whole ones.

Layers of a deep network make Problems too large to be searched within one memory limit after another, and to have
programs learnt from. Their quotient (`solve.periodic.quotient`) is as small as one layer's. What is proven of it is
proven of plans that place alike what repeats, and of no others.

Where all layers change at once, so does their memory, by much: a limit is seldom met closely. So layers may also be
placed alike in two groups, the first of them and the rest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

import numpy as np

from autopar.search.limited_solve import LimitedSolve
from autopar.search.task import Planned
from autopar.solve import Problem, Solution
from autopar.solve.parametric.archive import Met
from autopar.solve.periodic.layers import with_layers
from autopar.solve.periodic.quotient import Quotient, quotient
from autopar.solve.problem.problem import derived, objective, peak
from autopar.solve.problem.reduction import Choice, Ints


@dataclass(frozen=True, eq=False, kw_only=True)
class EqualLayersSolve(LimitedSolve):
    """`whole`, where what repeats is placed alike. Solutions are of the quotient, so are those of its plans."""

    whole: LimitedSolve
    small: Quotient

    def problem(self, limit_bytes: float | None, *, tensors_only: bool = False) -> Problem:
        """The quotient of the Problem under `limit_bytes`, in which all that a limit counts is counted."""
        if tensors_only:
            raise ValueError("the quotient was made of the Problem that counts more than tensors")
        found = self.small.problem
        return derived(found.node_costs, found.edges, found.usages, limit_bytes)

    def lifted(self, solution: Solution) -> Solution:
        """A solution of the quotient as one of the whole Problem, of which it proves nothing."""
        return replace(
            solution, choice=self.small.lift(solution.choice), lower_bound=0.0, witness=()
        )

    def planned(self, solution: Solution) -> Planned:
        """The plan that a choice of the quotient is."""
        return replace(self.whole.planned(self.lifted(solution)), solution=solution)

    def times_of(self, planned: Planned) -> Sequence[int]:
        """As of the whole Problem."""
        return self.whole.times_of(planned)

    def variable_of(self, op: int) -> int:
        """The node of the quotient that an operator's strategy is chosen by."""
        return int(self.small.classes[self.whole.variable_of(op)])

    def is_last(self, free: Planned, cost: float) -> bool:
        """As of the whole Problem."""
        return self.whole.is_last(free, cost)


def equally(attempt: LimitedSolve) -> EqualLayersSolve | None:
    """`attempt` where what repeats is placed alike; None if little repeats."""
    small = quotient(attempt.problem(0.0))
    if small is None:
        return None
    return EqualLayersSolve(
        attempt.task,
        attempt.ground,
        attempt.left,
        attempt.step_kinds,
        is_one_of_several=attempt.is_one_of_several,
        whole=attempt,
        small=small,
    )


def mixed(choices: Sequence[Met], most: float, below: float) -> tuple[Met, Met] | None:
    """The two choices that promise most where some layers are placed as in the one, the others as in the other.

    The first peaks at `most` bytes at most, the second at more, and so many layers are as in the first that all do.
    None if no two promise less than `below`.
    """
    inside = [met for met in choices if met.peak <= most]
    beyond = [met for met in choices if met.peak > most]

    def promised(pair: tuple[Met, Met]) -> float:
        small, large = pair
        share = (most - small.peak) / (large.peak - small.peak)
        return small.cost + share * (large.cost - small.cost)

    best = min(product(inside, beyond), key=promised, default=None)
    return best if best is not None and promised(best) < below else None


def in_two_groups(problem: Problem, small: Choice, large: Choice, most: float) -> Choice | None:
    """The cheapest choice that places the first layers as the one choice does and the rest as the other, or the last.

    As few are placed as in `small` as lets it peak at `most` bytes. None where no such choice is allowed.
    """
    layers = with_layers(problem).layers
    if layers is None:
        return None

    one = np.array(small, dtype=np.intp)
    other = np.array(large, dtype=np.intp)
    found = [_fewest(problem, rank, one, other, most) for rank in _ranks(layers[:, 1])]
    cost, best = min(
        ((objective(problem, choice), choice) for choice in found), default=(inf, None)
    )
    return best if cost < inf else None


def _ranks(layer: Ints) -> Iterator[Ints]:
    """Orders in which nodes turn from large to small: by layers from either end, what is in none at first or never."""
    count = int(layer.max(initial=-1)) + 1
    for inside in (layer, count - 1 - layer):
        for outside in (-1, count):
            yield np.where(layer < 0, outside, inside)


def _fewest(problem: Problem, rank: Ints, small: Ints, large: Ints, most: float) -> Choice:
    """The choice that is `small` up to the least rank from which on it may be `large` for a peak of `most` bytes."""

    def choice(few: int) -> Choice:
        return tuple(np.where(rank < few, small, large).tolist())

    fews = range(int(rank.max(initial=-1)) + 2)
    return choice(bisect_left(fews, -most, key=lambda few: -peak(problem, choice(few))))
