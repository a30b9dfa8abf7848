"""No primitive of the installed JAX is unknown, and every rule has cases."""

from __future__ import annotations

import importlib
import sys
from collections import Counter

import jax.extend.core
import pytest

from autopar.core.manual import KINDS as MANUAL
from autopar.core.regions import BOUNDARY
from autopar.ops.rules import registered, rule_of
from autopar.ops.rules.registry import reason_whole
from autopar.ops.rules.stated import INNER, OPAQUE, TRACED, reason_without_rule
from autopar.trace import walk
from autopar.trace.keys import _RANDOM
from tests.ops.all_cases import ABSENT, CASES
from tests.ops.build import operator_of

LIBRARIES = (
    "numpy",
    "nn",
    "random",
    "scipy.special",
    "scipy.linalg",
    "scipy.stats",
    "image",
    "lax",
    "ffi",
    "export",
)
KERNEL_LANGUAGES = ("pallas", "mosaic", "tpu_custom_call", "triton")
# Boundary operators of loops (equivalence/test_loops), callbacks (emit/test_effects) and what the user's function
# shards itself (api/test_own_shardings, equivalence/test_by_hand): they are not run alone on slices.
CALLBACKS = {"debug_callback", "debug_print", "io_callback", "pure_callback"}
ELSEWHERE = BOUNDARY | CALLBACKS | MANUAL | {"reshard", "shard_map", "sharding_constraint"}
TABLES = {"TRACED": TRACED, "OPAQUE": OPAQUE, "INNER": INNER}


def primitives() -> set[str]:
    """The names of the primitives that the modules of JAX define, those of kernel languages left out."""
    for library in LIBRARIES:
        importlib.import_module(f"jax.{library}")
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith(("jax._src", "jax.extend"))
        and not any(word in name for word in KERNEL_LANGUAGES)
    ]
    values = [value for module in modules for value in list(vars(module).values())]
    return {value.name for value in values if isinstance(value, jax.extend.core.Primitive)}


def test_every_primitive_of_jax_has_a_rule_or_a_reason() -> None:
    found = primitives()
    assert len(found) > 250
    assert {
        name for name in found if name not in registered() and reason_without_rule(name) is None
    } == set()


def test_no_primitive_is_in_two_tables() -> None:
    stated = Counter(kind for table in (registered(), *TABLES.values()) for kind in table)
    assert {kind for kind, count in stated.items() if count > 1} == set()


@pytest.mark.parametrize("table", TABLES)
def test_reasons_are_given(table: str) -> None:
    assert all(len(reason) > 8 for reason in TABLES[table].values())
    assert all(reason_without_rule(kind) == reason for kind, reason in TABLES[table].items())


def test_the_walk_handles_what_the_table_says() -> None:
    """What walk replaces is stated; aliases that change nothing may have a rule, for other graphs than traced ones."""
    handled = {*walk.CALLS, *walk.REMATS, *_RANDOM}
    assert handled - set(TRACED) == set()
    assert walk.ALIASES - {*TRACED, *registered()} == set()


def test_every_registered_primitive_has_a_case() -> None:
    assert set(registered()) - ABSENT - ELSEWHERE == {case.kind for case in CASES}


def test_no_two_cases_have_one_name() -> None:
    assert [name for name, count in Counter(case.name for case in CASES).items() if count > 1] == []


def test_what_is_stated_whole_has_a_reason_and_no_strategy() -> None:
    stated = [case for case in CASES if reason_whole(case.kind)]
    assert stated
    for case in stated:
        assert rule_of(operator_of(case)).factors == ()
