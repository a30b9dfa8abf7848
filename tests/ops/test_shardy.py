"""Our factors against those of XLA's own partitioner: every difference is listed with its reason, and is there."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from autopar.ops.rules import rule_of
from tests.ops.all_cases import CASES
from tests.ops.build import Case, build, operator_of
from tests.ops.shardy import Splits, differences, of_rule, of_shardy

_NO_KIND = (
    "an unreduced value is a sum, a maximum or a minimum: not a product, bits, or a user's function"
)
_NOT_A_RUN = "a part of a minor factor is no run of elements; Shardy takes it and lets a reshard put it right"
_ADDED = (
    "what is subtracted adds up; Shardy knows scatters by their body, and this is none of its list"
)

_RUNS = "each device reads or writes what of the runs lies in its shard; Shardy gathers the dim"

# (primitive, who splits more) -> the reason, and a case that shows the difference.
LISTED: dict[tuple[str, str], tuple[str, str]] = {
    ("dynamic_slice", "ours"): (
        "each device has its part of the slice, and zeros: the sum is the slice",
        "dynamic_slice",
    ),
    ("dynamic_update_slice", "theirs"): (
        "where an update is written is known at run time: Shardy takes the dim for one that passes",
        "dynamic_update_slice",
    ),
    ("gather", "ours"): (_RUNS, "gather runs clip"),
    ("pad", "theirs"): ("padding of -1 and 1 shifts elements from shard to shard", "pad one"),
    ("random_unwrap", "theirs"): ("the words of a key stay together", "random_unwrap"),
    ("random_wrap", "theirs"): ("the words of a key stay together", "random_wrap"),
    ("reduce", "theirs"): (_NO_KIND, "reduce"),
    ("reduce_and", "theirs"): (_NO_KIND, "reduce_and bits"),
    ("reduce_or", "theirs"): (_NO_KIND, "reduce_or bits"),
    ("reduce_prod", "theirs"): (_NO_KIND, "reduce_prod"),
    ("reduce_xor", "theirs"): (_NO_KIND, "reduce_xor"),
    ("reshape", "theirs"): (_NOT_A_RUN, "reshape (6, 4) (4, 6)"),
    ("scatter", "ours"): (_RUNS, "scatter run of rows set"),
    ("scatter-add", "ours"): (_RUNS, "scatter-add runs drop"),
    ("scatter-max", "ours"): (_RUNS, "scatter-max runs drop"),
    ("scatter-mul", "theirs"): (_NO_KIND, "scatter-mul"),
    ("scatter-sub", "ours"): (_ADDED, "scatter-sub"),
    ("triangular_solve", "ours"): (
        "columns are solved one by one; Shardy splits batch dims only",
        "triangular_solve",
    ),
}
# Shardy has come to agree from JAX 0.12 on.
OLD = {("dynamic_update_slice", "theirs"), ("pad", "theirs")}
BY_NAME = {case.name: case for case in CASES}


@cache
def both(case: Case) -> tuple[Splits, Splits] | None:
    """Our splits and Shardy's; None where Shardy has no rule of this operator."""
    built = build(case)
    theirs = of_shardy(built)
    return None if theirs is None else (of_rule(rule_of(built.op)), theirs)


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_differences_are_listed(case: Case) -> None:
    found = both(case)
    if found is not None:
        assert {(case.kind, difference) for difference in differences(*found)} <= set(LISTED)


@pytest.mark.parametrize("entry", LISTED, ids=" ".join)
def test_listed_differences_are_there(entry: tuple[str, str]) -> None:
    reason, name = LISTED[entry]
    found = both(BY_NAME[name])
    assert reason
    assert found is not None
    there = {(BY_NAME[name].kind, difference) for difference in differences(*found)}
    assert entry in there or (entry in OLD and not there)


COMPARED = [
    *("dot_general batch", "conv_general_dilated groups", "conv_general_dilated depthwise"),
    *(
        "reduce_sum",
        "reduce_max",
        "reduce_window_sum",
        "cumsum",
        "sort with values",
        "select_n scalar predicate",
    ),
    *(
        "reshape (4, 2, 4) (8, 4)",
        "transpose",
        "broadcast_in_dim",
        "concatenate",
        "slice",
        "pad",
        "fft",
        "clamp",
    ),
    *(
        "gather rows",
        "gather along axis",
        "scatter-add rows None",
        "scatter-max",
        "bitcast_convert_type narrower",
    ),
]


@pytest.mark.parametrize("name", COMPARED)
def test_what_matters_is_compared(name: str) -> None:
    """Neither an operator that grew in lowering nor a rule that was not read passes for agreement."""
    found = both(BY_NAME[name])
    assert found is not None
    assert found[1].indices


@pytest.mark.parametrize(
    "name", ["dot_general batch", "gather rows", "reduce_sum", "transpose", "fft"]
)
def test_a_planted_omission_is_seen(name: str) -> None:
    case = BY_NAME[name]
    rule = rule_of(operator_of(case))
    dims = [f for f in rule.factors if rule.sizes[f] > 1]
    found = both(case)
    assert found is not None
    for factor in dims:
        frozen = replace(rule, frozen=rule.frozen | {factor})
        assert list(differences(of_rule(frozen), found[1])) == ["theirs"]


def test_a_planted_excess_and_a_planted_kind_are_seen() -> None:
    case = BY_NAME["bitcast_convert_type wider"]
    rule = rule_of(operator_of(case))
    found = both(case)
    assert found is not None
    assert rule.frozen
    assert list(differences(of_rule(replace(rule, frozen=frozenset())), found[1])) == ["ours"]
    case = BY_NAME["dot_general batch"]
    found = both(case)
    assert found is not None
    assert list(
        differences(of_rule(replace(rule_of(operator_of(case)), reduced={})), found[1])
    ) == ["kind"]
