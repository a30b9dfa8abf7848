"""Random programs under random plans compute what the plain function computes; and what is drawn is worth running."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import fuzz
from tests.fuzz.case import FuzzCase, Outcome, check, compiled, draw_case
from tests.fuzz.generate import generate
from tests.fuzz.shrink import shrink

CASES, PART, QUICK = 180, 15, 6
COMPILED = tuple(range(fuzz.COMPILED_FROM, fuzz.COMPILED_FROM + 4))
BOUNDS = (0, QUICK, *range(PART, CASES + 1, PART))
PARTS = [
    pytest.param(first, end, marks=[pytest.mark.slow] * (first >= QUICK))
    for first, end in pairwise(BOUNDS)
]


@pytest.mark.parametrize(("first", "end"), PARTS)
def test_interpreted(first: int, end: int) -> None:
    outcomes = {seed: check(draw_case(seed)) for seed in range(first, end)}
    assert not {seed: outcome for seed, outcome in outcomes.items() if outcome.verdict == "failed"}
    assert sum(outcome.verdict == "passed" for outcome in outcomes.values()) >= end - first - 3


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("seed", COMPILED)
def test_compiled(seed: int) -> None:
    outcome = check(draw_case(seed), compiled)
    assert outcome.verdict == "passed", outcome.message


def test_a_case_is_determined_by_its_seed() -> None:
    for seed in (3, 11):
        one, other = draw_case(seed), draw_case(seed)
        assert str(one) == str(other)
        for name, value in one.program.values.items():
            np.testing.assert_array_equal(value, other.program.values[name])
    assert str(draw_case(3)) != str(draw_case(4))


def test_what_is_printed_is_what_runs() -> None:
    case = draw_case(5)
    namespace = {"jax": jax, "jnp": jax.numpy, "lax": jax.lax, "np": np}
    exec(str(case), namespace)
    with jax.enable_x64(True):
        printed = namespace[case.program.block.name](*case.program.args)
        for mine, theirs in zip(
            printed, case.program.block.function()(*case.program.args), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.slow
def test_programs_hold_most_of_what_there_is() -> None:
    found = set[str]()
    with jax.enable_x64(True):
        for seed in range(100):
            text = str(generate(np.random.default_rng(seed)))
            found |= {word for word in WORDS if word in text}
            if found == set(WORDS):
                return
    pytest.fail(f"no program has {set(WORDS) - found}")


WORDS = (
    *(
        "@",
        "dot_general",
        "conv",
        "reduce_window",
        "jnp.sum",
        "jnp.max",
        "argm",
        "sort",
        "cum",
        "concatenate",
        "split",
    ),
    *(
        "reshape",
        "transpose",
        "lax.pad",
        "at[",
        "segment_sum",
        "jnp.take",
        "one_hot",
        "iota",
        "random",
        "where",
    ),
    *(
        "astype",
        "dynamic_",
        "checkpoint",
        "grad",
        "scan",
        "while_loop",
        "cond",
        "fori_loop",
        "vmap",
        "shard_map",
    ),
    *("mode='drop'", "mode='fill'", "promise_in_bounds", "int64')", "uint32')", "jnp.zeros((0"),
)


def test_a_run_goes_on_where_the_last_one_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, report = tmp_path / "state.json", tmp_path / "report.json"
    for _ in range(2):
        monkeypatch.setattr(
            "sys.argv", ["fuzz", "--count", "3", "--state", str(state), "--json", str(report)]
        )
        assert fuzz.main() == 0
    found = json.loads(report.read_text())
    assert found["interpreted"]["next_seed"] == 6
    assert found["interpreted"]["passed"] == 6
    assert found["compiled"]["passed"] == 0


def test_a_failure_is_kept_printed_and_exits_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzz, "check", lambda *_: Outcome("failed", "result 0 is off"))
    monkeypatch.setattr(fuzz, "first_difference", lambda _: "in an instruction")
    state = tmp_path / "state.json"
    monkeypatch.setattr(
        "sys.argv", ["fuzz", "--count", "1", "--state", str(state), "--seed", "7", "--shrink", "0"]
    )
    assert fuzz.main() == 1
    printed = capsys.readouterr().out
    assert "FAILED interpreted seed 7" in printed
    assert "def program" in printed
    assert json.loads(state.read_text())["interpreted"]["failures"][0]["seed"] == 7


def test_a_failure_is_made_small() -> None:
    """What fails here is any program with a tanh: one line is left."""

    def broken(case: FuzzCase) -> Outcome:
        return (
            Outcome("failed", "Broken: tanh")
            if "jnp.tanh" in str(case.program)
            else Outcome("passed")
        )

    case = next(
        case
        for case in map(draw_case, range(100))
        if "jnp.tanh" in str(case.program) and case.program.size > 9
    )
    small = shrink(case, broken)
    assert small.program.size <= 2
    assert "jnp.tanh" in str(small)
