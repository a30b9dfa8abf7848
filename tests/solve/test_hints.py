"""CP-SAT starts at choices that its model allows: at others OR-Tools may end the process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ortools.sat.python import cp_model

from autopar.solve import Problem, Solution, SolveOptions, solve
from autopar.solve.cp_sat import finish as cp_sat
from autopar.solve.pipeline import rounds
from autopar.solve.pipeline.stage import Bracket
from autopar.solve.problem.incumbent import Best
from autopar.solve.trws.ascent import Answer, Ascent
from autopar.solve.trws.dual import Certificate
from tests.solve.oracle import cost_of
from tests.solve.test_crossover import FEW_SWEEPS, limited

OPTIONS = SolveOptions(cp_sat_work=0.2)


@pytest.fixture(scope="module")
def solved() -> tuple[Problem, Certificate, Solution]:
    problem = limited(4, 2, 2.0)
    _, certificate = Ascent(problem, FEW_SWEEPS).sweeps(np.inf, Best(problem, None, None))
    return problem, certificate, solve(problem)


def hints_of(model: cp_model.CpModel) -> int:
    return len(model.proto.solution_hint.vars)


@pytest.fixture
def hinted(solved: object, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every run: whether it had a hint, all of which the models must allow."""
    real, runs = cp_sat.run, list[bool]()

    def run(solver: cp_model.CpSolver, model: cp_model.CpModel, *more: Any) -> Any:
        runs.append(hints_of(model) > 0)
        if runs[-1]:
            at_hint = cp_model.CpSolver()
            at_hint.parameters.fix_variables_to_their_hinted_value = True
            assert at_hint.solve(model) == cp_model.OPTIMAL
        return real(solver, model, *more)

    monkeypatch.setattr(cp_sat, "run", run)
    return runs


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("share", "is_hinted"), [(np.inf, True), (1.0, True), (0.9, False)])
def test_a_choice_is_a_hint_unless_cheaper_ones_are_asked_for(
    share: float, is_hinted: bool, solved: tuple[Problem, Certificate, Solution], hinted: list[bool]
) -> None:
    problem, certificate, best = solved
    watch = Best(problem, None)
    known = Bracket(
        Answer(best.choice, best.objective, -np.inf),
        certificate.bound,
        share * best.objective,
        watch,
    )
    rounds._finished(certificate, OPTIONS, known)
    assert hinted
    assert all(was == is_hinted for was in hinted)


def test_a_margin_in_every_row_has_no_hint(
    solved: tuple[Problem, Certificate, Solution], hinted: list[bool]
) -> None:
    """The known choice may use a row to the last byte."""
    problem, certificate, best = solved
    limit = best.peak
    rows = replace(certificate.rows, limit=limit)
    work = cp_sat._Model(replace(certificate, rows=rows), cp_sat._no_window(certificate))
    work.byte_unit = limit / 1e3
    cp_sat.add_hint(work.model, work.nodes, best.choice)
    found = cp_sat._with_margin(work, OPTIONS, 1.0)
    assert hinted == [False]
    assert found is None or cost_of(problem, found) >= best.objective * (1 - 1e-9)
