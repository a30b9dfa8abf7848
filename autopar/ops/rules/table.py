"""The table of primitives: from the registry to text. What a rule says of itself is its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import ModuleType

from autopar.ops.rules.registry import Rule, reason_whole, registered_rules
from autopar.ops.rules.stated import INNER, OPAQUE, TRACED

_HEADER = """# Primitives

What can be split of each of JAX's primitives. Written by `python -m docs.primitives` from the rules themselves.

Reading the formulas: `x[b, m, k] -> out[b, m]` names the dims of operands and results. A dim that operand and result
share can be split. A dim that only an operand has is reduced: where it is split, the result is left *unreduced*, a
sum (or maximum, or minimum) still to be taken over the devices. A dim that is *frozen* is whole on every device.
*Linear in x* means that an unreduced x may pass through, so that the sum is taken once, later. Every rule is tested
strategy by strategy against the operator run whole.
"""
_SECTIONS = (
    (
        "Handled by the tracer",
        "No operator of a graph is one of these: something else is put in their place.",
        TRACED,
    ),
    (
        "Opaque",
        "Replicated with a warning, unless a rule is registered for them; refused under `strict`.",
        OPAQUE,
    ),
    (
        "Not in a traced function",
        "They stand in bodies that are run as they are, or in transformations.",
        INNER,
    ),
)


def primitive_table() -> str:
    """The table as Markdown: a section for each module of rules, then primitives that never split, then the others."""
    rules = registered_rules()
    families: dict[ModuleType, dict[Rule, list[str]]] = {}
    for kind, rule in rules.items():
        module = inspect.getmodule(rule)
        if (
            module is not None
            and reason_whole(kind) is None
            and module.__name__.startswith("autopar.ops.rules.")
        ):
            families.setdefault(module, {}).setdefault(rule, []).append(kind)

    whole = {kind: reason for kind in rules if (reason := reason_whole(kind)) is not None}
    lines = [_HEADER]
    for module in sorted(families, key=lambda module: module.__name__):
        lines += _family(module, families[module])

    lines += _section("Whole", "Never split: every device computes all of it.", whole)
    for title, text, table in _SECTIONS:
        lines += _section(title, text, table)

    return "\n".join(lines)


def _family(module: ModuleType, rules: dict[Rule, list[str]]) -> Iterator[str]:
    title = (inspect.getdoc(module) or "").partition("\n")[0]
    subject = title.removeprefix("Rules of ").removeprefix("Rule of ").rstrip(".")
    yield f"## {subject[0].upper()}{subject[1:]}\n"
    yield "| primitives | what can be split |"
    yield "|---|---|"
    for rule, kinds in rules.items():
        yield f"| {_names(kinds)} | {_cell(inspect.getdoc(rule) or '')} |"
    yield ""


def _section(title: str, text: str, table: Mapping[str, str]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for kind, reason in table.items():
        reasons.setdefault(reason, []).append(kind)
    yield f"## {title}\n"
    yield f"{text}\n"
    yield "| primitives | why |"
    yield "|---|---|"
    for reason, kinds in reasons.items():
        yield f"| {_names(kinds)} | {_cell(reason)} |"
    yield ""


def _names(kinds: list[str]) -> str:
    return ", ".join(f"`{kind}`" for kind in sorted(kinds))


def _cell(text: str) -> str:
    """Text of one cell: paragraphs after a break, no characters that Markdown would take for its own."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "<br>".join(paragraphs).replace("|", "\\|").replace("*", "\\*").replace("][", "]\\[")
