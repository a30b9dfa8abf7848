"""The reductions in order, repeated as long as they achieve much."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.presolve.dead_end_elimination import drop_dominated
from autopar.solve.presolve.functional_edges import contract_functional
from autopar.solve.presolve.merging import drop_lone, fold_constant, merge_parallel, share_equal
from autopar.solve.problem.clock import is_up
from autopar.solve.problem.problem import Problem
from autopar.solve.problem.reduction import Reduction, shrank, unchanged

_CHEAP = (share_equal, drop_forbidden, contract_functional, drop_forbidden, merge_parallel, fold_constant, drop_lone)
_ONCE = (drop_forbidden, contract_functional, merge_parallel, fold_constant, drop_lone)
_AT_REST: WeakSet[Problem] = WeakSet()  # what came out of the cheap reductions: they have nothing to do there


def reduce_cheaply(problem: Problem) -> Reduction:
    """Everything whose work is linear in the entries of the distinct matrices, as long as it achieves much.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    result = unchanged(problem)
    while result.problem not in _AT_REST:
        before = result.problem
        for step in _CHEAP:
            result = result.then(step)
        if not shrank(before, result.problem):
            _AT_REST.add(result.problem)
        elif is_up():
            break
    return result


def resting(step: Callable[[Problem], Reduction], problem: Problem) -> Reduction:
    """`step`, which changes usages alone: what was at rest still is, but for lone nodes."""
    result = step(problem)
    if problem in _AT_REST:
        _AT_REST.add(result.problem)
    return result


def is_at_rest(problem: Problem) -> bool:
    """Whether it came out of the cheap reductions."""
    return problem in _AT_REST


def reduce_once(problem: Problem) -> Reduction:
    """Each of the cheap reductions once, for problems of which hardly two matrices are equal.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    result = unchanged(problem)
    for step in _ONCE:
        result = result.then(step)
    return result


def reduce_fully(problem: Problem) -> Reduction:
    """The cheap reductions and dominance, as long as they achieve much."""
    result = unchanged(problem).then(reduce_cheaply)
    while True:
        before = result.problem
        result = result.then(drop_dominated).then(reduce_cheaply)
        if is_up() or not shrank(before, result.problem):
            return result
