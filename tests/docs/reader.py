"""Reader: somebody new, who knows README and docs only, has a program of his own, and copies from a page.

What he reads is counted in words, code left out. What he types is counted in lines: one for each block that he copies,
one for each line of it that he changes, one for a command.
"""

from __future__ import annotations

import re
import shlex
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from autopar.cli import app
from autopar.errors import AutoparError
from tests.docs.blocks import Block, blocks_of, commands_of
from tests.docs.pages import DOCS, ROOT

MOST_WORDS, MOST_LINES = 400, 10
"""Two minutes: reading takes 240 words a minute, a line a few seconds."""
_FENCE = re.compile(r"^( *)```.*?^\1```[ ]*$", re.MULTILINE | re.DOTALL)


@dataclass
class Reader:
    """What he has read and typed, and the names that his Python has."""

    words: int = 0
    lines: int = 0
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "typed"})

    def read(self, page: str, heading: str = "") -> list[Block]:
        """The blocks of a section, or of what stands before the first; a page that the entry pages lead to."""
        entries = (ROOT / "README.md").read_text() + (DOCS / "index.md").read_text()
        assert page in ("README.md", "docs/index.md") or page.removeprefix("docs/") in entries
        text = (ROOT / page).read_text(encoding="utf-8")
        parts = re.split(r"^#+ (.*)\n", text, flags=re.MULTILINE)
        sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        found = sections[heading or parts[1]]
        self.words += sum(1 for w in _FENCE.sub("", found).split() if re.search(r"\w", w))
        return blocks_of(found)

    def runs(self, block: Block, **changes: str) -> str:
        """What the code shows, with his own words in the place of the page's."""
        code = self._copied(block, changes)
        shown = StringIO()
        with redirect_stdout(shown):
            try:
                exec(compile(code, "typed.py", "exec"), self.names)
            except AutoparError as error:
                print(f"{type(error).__name__}: {error}")
        return shown.getvalue()

    def types(self, block: Block, command: str, **changes: str) -> str:
        """What the first command of a block shows that begins so."""
        line = next(line for line, _ in commands_of(block.text) if line.startswith(command))
        typed = _changed(line, changes)
        self.lines += 1
        return CliRunner().invoke(app, shlex.split(typed)[1:], catch_exceptions=False).output

    def saves(self, block: Block, file: str, /, **changes: str) -> None:
        """A file of the page under a name of his."""
        Path(file).write_text(self._copied(block, changes), encoding="utf-8")

    def looks_up(self, page: str, word: str) -> str:
        """The rows of a page's tables that begin with a word."""
        text = (ROOT / page).read_text(encoding="utf-8")
        rows = [line for line in text.splitlines() if line.startswith(f"| `{word}`")]
        self.words += sum(len(row.split()) for row in rows)
        return "\n".join(rows)

    def _copied(self, block: Block, changes: dict[str, str]) -> str:
        code = _changed(block.text, changes)
        before = block.text.splitlines()
        self.lines += 1 + sum(1 for line in code.splitlines() if line not in before)
        return code


def _changed(text: str, changes: dict[str, str]) -> str:
    """The text with each of `changes`, "what: by what", made; what is to be changed has to be there."""
    for change in changes.values():
        old, _, new = change.partition(" -> ")
        assert old in text, f"{old!r} is not in\n{text}"
        text = text.replace(old, new)
    return text


def named(blocks: list[Block], language: str, holds: str = "") -> Block:
    """The first block of a language that holds a text."""
    return next(block for block in blocks if block.language == language and holds in block.text)
