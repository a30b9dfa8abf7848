"""A search that ends early: the best so far, which says so, or a clean KeyboardInterrupt; then all works again."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ortools.sat.python import cp_model

import autopar
from autopar import SearchOptions, SearchProgress, SolveOptions
from autopar.api.plan_file import to_json
from autopar.errors import NoFeasiblePlan, PlanFileError, Unsolved
from autopar.search import limited_solve, mesh_context
from autopar.solve import Edge, Infeasible, NothingCheaper, Problem, solve, verify
from autopar.solve.certificate.proof import Exhaust
from autopar.solve.cp_sat.finish import solver_of
from autopar.solve.cp_sat.library import run
from tests.solve.draw import tangled

PARAMS = [jax.ShapeDtypeStruct((128, 128), jnp.float32) for _ in range(3)]
X = jax.ShapeDtypeStruct((64, 128), jnp.float32)
TWO = {"a": 4, "b": 2}
STAGES = [
    (mesh_context, "build_space"),
    (mesh_context, "assemble"),
    (limited_solve, "build_program"),
]
AT_ONCE = SearchOptions(gap_tolerance=0.0, solve=SolveOptions(time_limit_s=0.0))


def loss(ws: Any, x: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).sum()


def planned(**options: Any) -> autopar.Plan:
    settings: dict[str, Any] = {"cluster": "cpu8", "mesh": TWO, **options}
    return autopar.plan(loss, PARAMS, X, **settings)


def pressed(progress: SearchProgress) -> None:
    """Ctrl-C, as soon as the solver has a choice."""
    if progress.objective_s < np.inf:
        raise KeyboardInterrupt


@dataclass
class PressedAt:
    """`function`, but Ctrl-C at its call of this number; the first is 0."""

    number: int
    function: Callable[..., Any]
    calls: int = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == self.number + 1:
            raise KeyboardInterrupt
        return self.function(*args, **options)


def nothing(*_: Any) -> None:
    return None


def no_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_context, "standing", nothing)


@pytest.mark.parametrize("mesh", [TWO, None])
def test_ctrl_c_in_the_solver(mesh: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The best so far, for all meshes that were looked at; in the summary, the report and the file."""
    no_standing(monkeypatch)
    plan = planned(mesh=mesh, options=SearchOptions(on_progress=pressed))
    assert plan.summary.stopped == plan.record.stopped == "the keyboard"
    assert "by the keyboard: the best so far" in " ".join(plan.report().split())
    assert 0.0 <= plan.lower_bound_s <= plan.objective_s
    assert ("not searched to the end" in plan.summary.space) == (mesh is None)
    plan.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    assert loaded.summary.stopped == "the keyboard"
    assert loaded.report() == plan.report(compare=False)
    (tmp_path / "plan.json").write_text(to_json(plan.file).replace("the keyboard", "", 1))
    with pytest.raises(PlanFileError, match="ended by"):
        autopar.Plan.load(tmp_path / "plan.json")


def test_ctrl_c_before_anything_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean KeyboardInterrupt: collection goes on, and the next call plans as if nothing had been."""
    compiled = autopar.compile(loss, cluster="cpu8", mesh=TWO)
    assert gc.isenabled()
    for module, name in STAGES:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, PressedAt(0, getattr(module, name)))
            with pytest.raises(KeyboardInterrupt):
                compiled.plan(PARAMS, X)
        assert gc.isenabled()
    plan = compiled.plan(PARAMS, X)
    assert plan.summary.stopped == ""
    assert plan.report() == planned().report()


@pytest.mark.parametrize(("module", "name"), STAGES)
def test_ctrl_c_on_the_second_mesh(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found on the first is the answer; no third is begun."""
    function = PressedAt(1, getattr(module, name))
    monkeypatch.setattr(module, name, function)
    plan = planned(mesh=None)
    assert plan.summary.stopped == "the keyboard"
    assert function.calls == 2


def test_ctrl_c_while_the_second_mesh_is_to_undercut_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The solver says that it found nothing cheaper, and that it was interrupted: nothing more is solved."""
    cutoffs: list[float] = []

    def interrupted(problem: Any, *, below: float = np.inf, **options: Any) -> Any:
        cutoffs.append(below)
        if below < np.inf:
            raise NothingCheaper(below, 0.0, "keyboard")
        return solve(problem, **options)

    no_standing(monkeypatch)
    monkeypatch.setattr(limited_solve, "solve", interrupted)
    plan = planned(mesh=None)
    assert [cutoff < np.inf for cutoff in cutoffs] == [False, True]
    assert plan.summary.stopped == "the keyboard"
    assert "not searched to the end" in plan.summary.space


def test_ctrl_c_while_what_was_found_exceeds_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan without the limit is no answer within it."""
    free = planned()
    no_standing(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        planned(
            memory_limit_bytes=free.peak_memory_bytes - 1,
            options=SearchOptions(on_progress=pressed),
        )


def test_a_time_limit_that_is_hit_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(mesh=None, options=AT_ONCE)
    assert plan.summary.stopped == "the time limit after 0 s"
    assert "another run may differ" in " ".join(plan.report().split())
    assert plan.objective_s >= planned(mesh=None).objective_s >= plan.lower_bound_s >= 0.0
    no_standing(monkeypatch)
    assert planned(options=AT_ONCE).summary.stopped == "the time limit after 0 s"


def test_a_time_limit_that_is_not_hit_changes_nothing(tmp_path: Path) -> None:
    long = SearchOptions(solve=SolveOptions(time_limit_s=1e6))
    files = tmp_path / "a.json", tmp_path / "b.json"
    planned(mesh=None).save(files[0])
    planned(mesh=None, options=long).save(files[1])
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "stopped" not in files[0].read_text()


def test_time_that_is_up_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(problem: Any, **options: Any) -> Any:
        if problem.usage_limit is None:
            return solve(problem, **options)
        raise Unsolved("no choice found")

    limit = planned().peak_memory_bytes - 1
    no_standing(monkeypatch)
    monkeypatch.setattr(limited_solve, "solve", slow)
    with pytest.raises(
        Unsolved, match="none was proven impossible, until the search was ended by the time limit"
    ):
        planned(memory_limit_bytes=limit, options=AT_ONCE)


@pytest.mark.slow
def test_limits_are_not_tightened_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that all exceed the limit: each tighter one would be another solve and another program."""
    limits: list[float] = []

    def counted(problem: Any, **options: Any) -> Any:
        limits.extend([] if problem.usage_limit is None else [problem.usage_limit])
        return solve(problem, **options)

    def larger(*args: Any) -> Any:
        return replace(account_of(*args), peak_memory_bytes=10**10)

    account_of = limited_solve.account_of
    no_standing(monkeypatch)
    monkeypatch.setattr(limited_solve, "account_of", larger)
    monkeypatch.setattr(limited_solve, "solve", counted)
    with pytest.raises(Unsolved, match="until the search was ended by the time limit"):
        planned(memory_limit_bytes=10**9, options=AT_ONCE)
    assert len(limits) == 1
    limits.clear()
    with pytest.raises((Unsolved, NoFeasiblePlan)):
        planned(memory_limit_bytes=10**9)
    assert len(limits) > 1


@pytest.mark.parametrize("bad", [-1.0, float("nan")])
def test_time_limits_that_make_no_sense(bad: float) -> None:
    with pytest.raises(ValueError, match="time_limit_s is"):
        SolveOptions(time_limit_s=bad)


# Real signals ---------------------------------------------------------------------------------------------------------


def pigeons(count: int) -> Problem:
    """More nodes than strategies, all different: no choice, and hard to prove."""
    different = np.where(np.eye(count - 1, dtype=bool), np.inf, 0.1)
    edges = tuple(Edge(u, v, different) for u in range(count) for v in range(u))
    return Problem((np.zeros(count - 1),) * count, edges)


def test_ctrl_c_is_pythons_after_cp_sat() -> None:
    """The solver's own handler would leave none behind: the next Ctrl-C would end the process."""
    with pytest.raises(Infeasible):
        solve(pigeons(4), options=SolveOptions(max_table_entries=1))
    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_ctrl_c_is_pythons_after_verification() -> None:
    """It asks CP-SAT on its own."""
    problem = tangled(0, limit=0.35)
    solution = solve(
        problem, options=SolveOptions(max_table_entries=1, max_sweeps=2, anneal_passes=0)
    )
    assert any(isinstance(step, Exhaust) for step in solution.witness or ())
    verify(problem, solution, search_work=10.0)
    with pytest.raises(KeyboardInterrupt):
        interrupted()


def interrupted() -> None:
    """Python handles a signal a few instructions later: still inside this function."""
    signal.raise_signal(signal.SIGINT)
    sleep(10.0)


def test_ctrl_c_ends_cp_sat_soon() -> None:
    model = cp_model.CpModel()
    nodes = [[model.new_bool_var("") for _ in range(39)] for _ in range(40)]
    for variables in nodes:
        model.add_exactly_one(variables)
    for s in range(39):
        for u in range(40):
            for v in range(u):
                model.add_bool_or([nodes[u][s].Not(), nodes[v][s].Not()])
    solver: Any = solver_of(SolveOptions(), 1e3)
    solver.parameters.cp_model_presolve = False
    solver.parameters.symmetry_level = 0

    def press(_signal: int, _frame: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    old = signal.signal(signal.SIGALRM, press)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            assert run(solver, model) is None
    finally:
        signal.signal(signal.SIGALRM, old)


SCRIPT = """
import sys, jax, jax.numpy as jnp, autopar
from tests.api.test_halt import loss, PARAMS, X
plan = autopar.plan(loss, PARAMS, X, cluster="cpu8", memory_limit_bytes=160_000)
plan.save(sys.argv[1])
"""


@pytest.mark.slow
def test_other_hash_seeds_and_threads_give_the_same_file(tmp_path: Path) -> None:
    for number, (seed, threads) in enumerate((("0", "1"), ("12345", "2"))):
        seeded = {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / f"{number}.json")]
        subprocess.run(
            command,
            check=True,
            env={**os.environ, **seeded, "PYTHONPATH": os.getcwd()},
            timeout=300,
        )
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()
