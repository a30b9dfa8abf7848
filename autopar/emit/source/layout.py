"""Layout: expressions as lines, broken as ruff's formatter breaks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 88
"""Ruff's own line length."""
_STEP = 4


@dataclass(frozen=True)
class Named:
    """A keyword argument, or a key of a dict with `sign` ": "."""

    name: str
    value: Text
    sign: str = "="


@dataclass(frozen=True)
class Group:
    """`head` and items in brackets: a call, or with no head a tuple, a list or a dict."""

    head: str
    items: tuple[Text, ...]
    brackets: str = "()"

    @property
    def is_call(self) -> bool:
        """Whether a function is called: then its arguments may stand on one line of their own."""
        return bool(self.head)


Text = str | Named | Group
"""An expression. What is a str is not broken."""


def call(head: str, *items: Text, **named: Text) -> Group:
    """A call of `head`."""
    return Group(head, (*items, *(Named(name, value) for name, value in named.items())))


def sequence(items: Sequence[Text], brackets: str = "()") -> Group:
    """A tuple; a list with brackets "[]"."""
    return Group("", tuple(items), brackets)


def flat(text: Text) -> str:
    """The expression on one line."""
    if isinstance(text, str):
        return text
    if isinstance(text, Named):
        return f"{text.name}{text.sign}{flat(text.value)}"
    inside = ", ".join(map(flat, text.items)) + ("," if _is_single_tuple(text) else "")
    return f"{text.head}{text.brackets[0]}{inside}{text.brackets[1]}"


def lines(text: Text, indent: int, lead: str = "", tail: str = "") -> list[str]:
    """`lead`, the expression and `tail` as lines, the first of which begins at column `indent`."""
    pad = " " * indent
    whole = f"{pad}{lead}{flat(text)}{tail}"
    if isinstance(text, str) or len(whole) <= WIDTH:
        return [whole]
    if isinstance(text, Named):
        return lines(text.value, indent, f"{lead}{text.name}{text.sign}", tail)
    if not text.items:
        return [whole]

    opened = f"{pad}{lead}{text.head}{text.brackets[0]}"
    closed = f"{pad}{text.brackets[1]}{tail}"
    inner = " " * (indent + _STEP)
    on_one = inner + ", ".join(map(flat, text.items))
    if text.is_call and len(on_one) <= WIDTH:
        return [opened, on_one, closed]
    body = [line for item in text.items for line in lines(item, indent + _STEP, tail=",")]
    return [opened, *body, closed]


def assignment(targets: Sequence[Text], value: Text, indent: int) -> list[str]:
    """`a, b = value`; targets that do not fit on the line stand on one each."""
    shown = ", ".join(map(flat, targets))
    lead = f"{shown} = " if len(targets) != 1 else f"{shown}, = "
    head = value.head + value.brackets[0] if isinstance(value, Group) else flat(value)
    if len(targets) == 1:
        lead = f"({shown},) = "
    if indent + len(lead) + len(head) <= WIDTH:
        return lines(value, indent, lead)

    pad = " " * indent
    stacked = [line for target in targets for line in lines(target, indent + _STEP, tail=",")]
    return [f"{pad}(", *stacked, *lines(value, indent, ") = ")]


def _is_single_tuple(text: Group) -> bool:
    return not text.is_call and text.brackets == "()" and len(text.items) == 1
