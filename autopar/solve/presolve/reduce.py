"""The reductions in order, repeated as long as they achieve much."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.presolve.dead_end_elimination import drop_dominated
from autopar.solve.presolve.functional_edges import contract_functional
from autopar.solve.presolve.merging import drop_lone, fold_constant, merge_parallel, share_equal
from autopar.solve.problem.options import PresolveOptions
from autopar.solve.problem.problem import Problem
from autopar.solve.problem.reduction import Reduction, shrank, unchanged
from autopar.solve.problem.stop import is_up

Step = Callable[[Problem], Reduction]

_ALL = PresolveOptions()
_AT_REST: WeakKeyDictionary[Problem, PresolveOptions] = WeakKeyDictionary()
"""What came out of the cheap reductions, with these switches: they have nothing to do there."""


def _once(options: PresolveOptions) -> tuple[Step, ...]:
    """The cheap reductions in order."""
    functional = (contract_functional,) if options.functional_edges else ()
    return (drop_forbidden, *functional, merge_parallel, fold_constant, drop_lone)


def _cheap(options: PresolveOptions) -> tuple[Step, ...]:
    """The same, for problems many of whose matrices are equal."""
    shared = (share_equal,) if options.hash_consing else ()
    functional = (drop_forbidden, contract_functional) if options.functional_edges else ()
    return (*shared, *functional, drop_forbidden, merge_parallel, fold_constant, drop_lone)


def reduce_cheaply(problem: Problem, options: PresolveOptions = _ALL) -> Reduction:
    """Everything whose work is linear in the entries of the distinct matrices, as long as it achieves much.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    result = unchanged(problem)
    while _AT_REST.get(result.problem) != options:
        before = result.problem
        for step in _cheap(options):
            result = result.then(step)
        if not shrank(before, result.problem):
            _AT_REST[result.problem] = options
        elif is_up():
            break
    return result


def resting(step: Step, problem: Problem) -> Reduction:
    """`step`, which changes usages alone: what was at rest still is, but for lone nodes."""
    result = step(problem)
    if problem in _AT_REST:
        _AT_REST[result.problem] = _AT_REST[problem]
    return result


def is_at_rest(problem: Problem) -> bool:
    """Whether it came out of the cheap reductions."""
    return problem in _AT_REST


def reduce_once(problem: Problem, options: PresolveOptions = _ALL) -> Reduction:
    """Each of the cheap reductions once, for problems of which hardly two matrices are equal.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    result = unchanged(problem)
    for step in _once(options):
        result = result.then(step)
    return result


def reduce_fully(problem: Problem, options: PresolveOptions = _ALL) -> Reduction:
    """The cheap reductions and dominance, as long as they achieve much."""
    cheaply = partial(reduce_cheaply, options=options)
    result = unchanged(problem).then(cheaply)
    while options.dead_end_elimination:
        before = result.problem
        result = result.then(drop_dominated).then(cheaply)
        if is_up() or not shrank(before, result.problem):
            break
    return result
