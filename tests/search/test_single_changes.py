"""single_changes: the price of running one operator otherwise, against all choices of the copies around it."""

from __future__ import annotations

from itertools import product
from math import isfinite
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.search.single_changes import single_changes
from autopar.solve.problem.problem import objective


def step(w: Any, x: Any) -> Any:
    return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) @ w.T))(w)


def test_prices_are_those_of_all_choices_of_copies_tried() -> None:
    shapes = [jax.ShapeDtypeStruct((2048, 2048), jnp.float32)] * 2
    planned = autopar.plan(step, *shapes, cluster="2xh100", mesh={"a": 2}).bound.planned
    space = planned.ground.space
    problem = planned.ground.problem(planned.plan.step_kinds, None)
    assert planned.solution is not None
    choice = planned.solution.choice
    first_copy = len(space.inputs) + sum(map(bool, space.strategies))
    copies = range(first_copy, first_copy + len(space.copies))
    found = single_changes(planned, range(len(planned.graph.ops)))

    tried = 0
    for op, changes in found.items():
        variable = space.operator_variables[op]
        near = {v for pair in problem.ends.tolist() if variable in pair for v in pair}
        beside = sorted(near.intersection(copies))
        for number, strategy in enumerate(space.strategies[op]):
            best = float("inf")
            for taken in product(*(range(problem.counts[copy]) for copy in beside)):
                other = list(choice)
                other[variable] = number
                for copy, candidate in zip(beside, taken, strict=True):
                    other[copy] = candidate
                best = min(best, objective(problem, tuple(other)))

            told = [change.costs_s for change in changes if change.strategy == strategy]
            expected = best - planned.plan.objective_s
            assert told == ([pytest.approx(expected, abs=1e-12)] if isfinite(best) else [])
            tried += bool(told)

        assert [change.costs_s for change in changes] == sorted(c.costs_s for c in changes)
    assert tried > len(found) > 5
