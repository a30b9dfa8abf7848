"""single_changes: the price of running one operator otherwise, against all choices of the copies around it."""

from __future__ import annotations

from itertools import product
from math import isfinite
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.search.single_changes import SingleChanges
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
    single = SingleChanges(planned)
    of_operators = single.of_operators(range(len(planned.graph.ops)))
    of_inputs = single.of_inputs(range(len(planned.graph.inputs)))
    found = {space.operator_variables[op]: changes for op, changes in of_operators.items()}
    candidates = {space.operator_variables[op]: space.strategies[op] for op in of_operators}
    candidates |= dict(enumerate(space.inputs))

    tried = 0
    for variable, changes in (*found.items(), *of_inputs.items()):
        near = {v for pair in problem.ends.tolist() if variable in pair for v in pair}
        beside = sorted(near.intersection(copies))
        for number, candidate in enumerate(candidates[variable]):
            best = float("inf")
            for taken in product(*(range(problem.counts[copy]) for copy in beside)):
                other = list(choice)
                other[variable] = number
                for copy, place in zip(beside, taken, strict=True):
                    other[copy] = place
                best = min(best, objective(problem, tuple(other)))

            told = [change.costs_s for change in changes if change.candidate == candidate]
            expected = best - planned.plan.objective_s
            assert told == ([pytest.approx(expected, abs=1e-12)] if isfinite(best) else [])
            tried += bool(told)

        assert [change.costs_s for change in changes] == sorted(c.costs_s for c in changes)
    assert tried > len(found) > 5
