"""What the user is told where no plan satisfies all: the constraints that clash, as written, and no others."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.sizes import rounded_bytes
from autopar.errors import InvalidConstraint, NoFeasiblePlan, Unsolved
from autopar.search import limited_solve
from autopar.search.explain_infeasible import blame
from autopar.solve import Clash, Infeasible

PARAMS = {
    "w1": jax.ShapeDtypeStruct((512, 2048), jnp.float32),
    "w2": jax.ShapeDtypeStruct((2048, 512), jnp.float32),
}
X = jax.ShapeDtypeStruct((64, 512), jnp.float32)
MEBI = 2**20
WHOLE = 4 * MEBI  # bytes of w1, and of w2
REST = (
    autopar.pin("x", P("a")),
    autopar.forbid("params['w2']", P("a")),
    autopar.tie("params['w2']", "params['w1']"),
    autopar.forbid(autopar.at(kind="tanh"), P(None, "a")),
)
SOLVED = autopar.SearchOptions(gap_tolerance=0.0)
"""No gap may be left: every limit is solved for."""


def loss(params: Any, x: Any) -> Any:
    hidden = jnp.tanh(x @ params["w1"])
    return ((hidden @ params["w2"]) ** 2).sum()


def planned(limit: int, *constraints: Any, **options: Any) -> autopar.Plan:
    settings: dict[str, Any] = {"cluster": "cpu8", "mesh": {"a": 8}, **options}
    return autopar.plan(
        loss, PARAMS, X, memory_limit_bytes=limit, constraints=constraints, **settings
    )


def refused(limit: int, *constraints: Any, **options: Any) -> str:
    with pytest.raises(NoFeasiblePlan) as error:
        planned(limit, *constraints, **options)
    return str(error.value)


def clash_of(told: str) -> str:
    """What stands between "These clash: " and the limit."""
    return told.partition("These clash: ")[2].partition("; the memory limit at ")[0]


def test_two_constraints_and_the_limit() -> None:
    """Either of the weights may be whole within 7 MiB, not both; what else is asked for is not named."""
    first, second = autopar.replicate("params['w1']"), autopar.pin("params['w2']", P())
    others = (REST[0], REST[3])
    told = refused(7 * MEBI, others[0], first, others[1], second)
    assert clash_of(told) == f"{first}; {second}"
    assert "fits in the memory limit of 7 MiB a device" in told
    assert "Nothing less clashes." in told
    assert "test_clash.py" in told
    assert f"params['w1'] float32[512, 2048] ({rounded_bytes(WHOLE)})" in told
    assert f"params['w2'] float32[2048, 512] ({rounded_bytes(WHOLE)})" in told
    for kept in (first, second):
        assert planned(7 * MEBI, *others, kept).peak_memory_bytes <= 7 * MEBI


def test_a_tie_hands_on_what_clashes() -> None:
    """The tie alone makes the second weight whole: it is one of three."""
    first, tie = autopar.replicate("params['w1']"), REST[2]
    told = refused(7 * MEBI, REST[0], tie, first)
    assert clash_of(told) == f"{tie}; {first}"
    assert planned(7 * MEBI, REST[0], tie).peak_memory_bytes <= 7 * MEBI


def test_memory_alone() -> None:
    told = refused(2**16, *REST[:2])
    assert "These clash" not in told
    assert re.search(
        r"No constraint is to blame, but the memory limit at \w+ \(\S*test_clash\.py:\d+ \(loss\)\), where ",
        told,
    )


def test_memory_is_to_blame_where_no_choice_was_met() -> None:
    """As the time was up before: which operators clash with the limit is known, not what they hold."""
    at_once = autopar.SearchOptions(solve=autopar.SolveOptions(time_limit_s=0))
    told = refused(2**16, options=at_once)
    assert re.search(
        r"No constraint is to blame, but the memory limit at \w+ \(\S* \(loss\)\)\. ", told
    )


def test_a_constraint_of_the_mode_says_so() -> None:
    told = refused(6 * MEBI, mode="data_parallel")
    assert clash_of(told) == "replicate(<inputs that are not data>) (of mode 'data_parallel')"


def test_sentences() -> None:
    """Constraints that clash without memory; and what is told where nothing, or not all, was found out."""
    told = blame(Clash((0, 2), (), True, True), ["pin(a)", "pin(b)", "tie(a, c)"], None)
    assert told == "These clash: pin(a); tie(a, c). Nothing less clashes."
    told = blame(Clash((0, 1), (), True, False), ["pin(a)", "pin(b)"], None)
    assert told.endswith("Without any one of these the others can be had.")
    assert blame(Clash((1,), (), True, False), ["x", "pin(b)"], None).endswith(
        "pin(b). That alone is too much."
    )
    assert blame(Clash((0, 1), (), False, False), ["x", "y"], None).endswith(
        "Possibly not all of these are needed."
    )
    assert "not found out" in blame(None, [], None)
    assert "the function itself" in blame(Clash((), (), True, True), [], None)


def test_several_meshes_are_one_error() -> None:
    constraints = autopar.replicate("params['w1']"), autopar.replicate("params['w2']")
    told = refused(7 * MEBI, *constraints, mesh=None)
    assert clash_of(told) == "; ".join(map(str, constraints))


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("mesh", [{"a": 8}, None])
def test_an_unknown_is_not_called_infeasible(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that gives up under a limit: nothing is proven, and the error says so."""
    solve = limited_solve.solve

    def forgetful(problem: Any, **options: Any) -> Any:
        if problem.usage_limit is None:
            return solve(problem, **options)
        raise Unsolved("no choice found")

    monkeypatch.setattr(limited_solve, "solve", forgetful)
    with pytest.raises(Unsolved, match="none was proven impossible") as error:
        planned(7 * MEBI, autopar.replicate("params"), mesh=mesh, options=SOLVED)
    assert not isinstance(error.value, NoFeasiblePlan)
    assert "These clash" not in str(error.value)


def test_an_unknown_without_a_limit_is_not_called_infeasible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forgetful(problem: Any, **options: Any) -> Any:
        raise Unsolved("no choice found")

    monkeypatch.setattr(limited_solve, "solve", forgetful)
    held = autopar.tie("params['w1']", "params['w2']")
    with pytest.raises(
        Unsolved,
        match=r"tie\(.*\), and none was proven impossible: no choice found. .*, or choose another mesh",
    ):
        planned(2**30, held)


def test_a_program_above_the_limit_proves_nothing() -> None:
    """Under the least that any plan needs all is refused with proof; between that and the least peak found, without."""
    with pytest.raises(NoFeasiblePlan) as error:
        planned(1)
    told = re.search(r"any plan needs \S+ \S+ \(([\d,]+) bytes\)", str(error.value))
    assert told is not None
    least = int(told[1].replace(",", ""))
    peak = error.value.min_peak_bytes
    assert peak is not None
    assert least <= peak
    assert isinstance(_outcome(least - 1), NoFeasiblePlan)
    for limit in sorted({least, (least + peak) // 2, max(least, peak - 1)}):
        outcome = _outcome(limit)
        assert isinstance(outcome, Unsolved) or outcome.peak_memory_bytes <= limit
    assert _outcome(peak).peak_memory_bytes <= peak


def _outcome(limit: int) -> Any:
    try:
        return planned(limit)
    except (NoFeasiblePlan, Unsolved) as error:
        return error


def test_one_mesh_of_which_nothing_is_known_leaves_all_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Proven of all shapes but one."""
    solve, given_up = limited_solve.solve, list[Any]()

    def forgetful(problem: Any, **options: Any) -> Any:
        try:
            return solve(problem, **options)
        except Infeasible:
            if given_up and given_up[0] != problem.counts:
                raise
            given_up.append(problem.counts)
            raise Unsolved("no choice found") from None

    monkeypatch.setattr(limited_solve, "solve", forgetful)
    constraints = autopar.replicate("params['w1']"), autopar.replicate("params['w2']")
    options = replace(SOLVED, recompute="never")
    with pytest.raises(Unsolved):
        planned(7 * MEBI, *constraints, mesh=None, options=options)
    assert given_up


def test_of_constraints_that_contradict_only_those_are_named() -> None:
    """A chain of ties hands on a pin; what else is asked for is not named."""
    first, second = autopar.pin("params['w1']", P("a")), autopar.replicate("output[0]")
    ties = autopar.tie("params['w1']", "params['w2']"), autopar.tie("params['w2']", "x")
    last = autopar.pin("x", P(None, "a"))
    with pytest.raises(InvalidConstraint) as error:
        planned(2**30, first, second, *ties, REST[3], last)
    told = str(error.value)
    assert all(str(constraint) in told for constraint in (first, *ties, last))
    assert all(str(constraint) not in told for constraint in (second, REST[3]))
    with pytest.raises(InvalidConstraint) as error:
        planned(
            2**30, autopar.forbid("params", P()), second, REST[3], autopar.replicate("params['w1']")
        )
    told = str(error.value)
    assert (
        f"{autopar.replicate('''params['w1']''')} contradicts {autopar.forbid('params', P())}: together"
        in told
    )
