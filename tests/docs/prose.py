"""Prose: the sentences of a page, without its code, tables and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator

_FENCE = re.compile(r"^( *)```.*?^\1```[ ]*$", re.MULTILINE | re.DOTALL)
_LEFT_OUT = re.compile(r"^\s*(#|\||:::|<|!!!|\?\?\?|!\[|---|\s*- \[|:material)")
_ITEM = re.compile(r"^\s*([-*]|\d+\.)\s+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?])[)\"]?\s+(?=[A-Z`*\"(\[\d])")


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page in Markdown; a piece of code or mathematics counts as one word."""
    for paragraph in _paragraphs(_FENCE.sub("", text)):
        plain = re.sub(r"`[^`]+`", "`code`", _LINK.sub(r"\1", paragraph))
        yield from (sentence for sentence in _END.split(plain) if sentence.strip())


def words(sentence: str) -> int:
    """How many words a sentence has: what holds a letter or a digit."""
    return sum(1 for word in sentence.split() if re.search(r"\w", word))


def _paragraphs(text: str) -> Iterator[str]:
    """Runs of lines that are prose; each item of a list is one."""
    run: list[str] = []
    for line in [*text.splitlines(), ""]:
        is_item = _ITEM.match(line) is not None
        is_prose = bool(line.strip()) and not _LEFT_OUT.match(line)
        if run and (is_item or not is_prose):
            yield " ".join(run)
            run = []
        if is_prose:
            run.append(_ITEM.sub("", line).strip())
