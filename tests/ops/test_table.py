"""The table of primitives in the docs is what the registry says, and says something of every primitive."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from autopar.ops.rules import registered
from autopar.ops.rules.registry import registered_rules
from autopar.ops.rules.stated import INNER, OPAQUE, TRACED
from autopar.ops.rules.table import primitive_table

TARGET = Path(__file__).parents[2] / "docs" / "reference" / "primitives.md"


def test_the_table_is_up_to_date() -> None:
    assert TARGET.read_text(encoding="utf-8") == primitive_table(), (
        "run `python -m docs.primitives`"
    )


@pytest.mark.parametrize("table", [TRACED, OPAQUE, INNER], ids=["traced", "opaque", "inner"])
def test_every_stated_primitive_is_in_the_table(table: dict[str, str]) -> None:
    text = primitive_table()
    assert [kind for kind in table if f"`{kind}`" not in text] == []


def test_every_primitive_with_a_rule_is_in_the_table_once() -> None:
    text = primitive_table()
    own = [
        kind for kind, rule in registered_rules().items() if rule.__module__.startswith("autopar.")
    ]
    assert set(own) <= set(registered())
    assert [kind for kind in own if text.count(f"`{kind}`") != 1] == []


def test_every_rule_says_what_it_computes() -> None:
    rules = {
        kind: rule
        for kind, rule in registered_rules().items()
        if rule.__module__.startswith("autopar.")
    }
    assert [kind for kind, rule in rules.items() if not inspect.getdoc(rule)] == []
