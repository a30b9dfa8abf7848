"""Blocks: the fenced blocks of a page in order, and what running them shows.

* ```` ```python ```` is run, all of a page in one namespace. With `title="model.py"` it is written to that file, and
  imported.
* ```` ```toml title="mine.toml" ```` (or any other language with a title) is written to that file. A file in a folder
  is one of the package, and is not imported.
* ```` ```diff title="autopar/..." ```` is an edit: lines without `+` are replaced by those without `-`. A page with one
  works on a copy of the package and of the solver's tests.
* ```` ```console ```` holds commands behind `$`: `autopar` with its output below it, or `pytest`, which has to pass.
* ```` ```text ```` right behind a python block is its output: what it prints, then the error that it raises. A line
  `...` stands for any lines. An error is compared word by word, as pages wrap it; there ` ... ` stands for any words.
* All others (`bash`, a text by itself) are only shown.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?P<rest>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r'title="([^"]+)"')


Check = Callable[[str, str | None, str, str | None], None]
"""What is done with what a block shows: where it stands, its output on the page, what it prints, its error."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it stands for ("" if none), its text, the page's line where that begins.

    `output` is the block of text right behind it, None if there is none.
    """

    language: str
    title: str
    text: str
    line: int
    output: str | None = None


class Differs(AssertionError):
    """A block that does not show what its page says."""


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page, those that are outputs with the block that they are of."""
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        indent, language = match["indent"], match["language"]
        body = "".join(
            line.removeprefix(indent) for line in match["text"].splitlines(keepends=True)
        )
        is_behind = bool(found) and not text[end : match.start()].strip()
        if (
            language == "text"
            and is_behind
            and found[-1].language == "python"
            and found[-1].output is None
        ):
            last = found.pop()
            found.append(Block(last.language, last.title, last.text, last.line, body))
        else:
            title = _TITLE.search(match["rest"])
            line = text.count("\n", 0, match.start("text")) + 1
            found.append(Block(language, title[1] if title else "", body, line))
        end = match.end()
    return found


def run_page(page: Path, check: Check | None = None) -> None:
    """Runs all blocks of a page in the current directory.

    Raises:
      Differs: a block shows something else than its page says, or raises where the page says nothing of it.
    """
    sys.path.insert(0, ".")
    namespace: dict[str, Any] = {"__name__": page.stem}
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    if any(block.language == "diff" for block in blocks):
        _copy_package()
    for block in blocks:
        if block.language == "diff":
            edit(Path(block.title), block.text)
        elif block.title:
            _write(block)
        elif block.language == "python":
            _run_python(page, block, namespace, check or compare)
        elif block.language == "console":
            _run_commands(page, block, check or compare)


def _write(block: Block) -> None:
    """Writes a file of a page; one of Python is imported too."""
    Path(block.title).write_text(block.text, encoding="utf-8")
    if block.title.endswith(".py") and "/" not in block.title:
        importlib.invalidate_caches()
        importlib.import_module(Path(block.title).stem)


def _copy_package() -> None:
    """Copies what a page edits into the current directory."""
    for name in ("autopar", "cost_models", "tests/solve"):
        shutil.copytree(ROOT / name, name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", "pyproject.toml")


def edit(path: Path, text: str) -> None:
    """Makes an edit to a file.

    Raises:
      Differs: the lines that it replaces do not stand there once.
    """
    lines = text.splitlines(keepends=True)
    before, after = ("".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
    found = path.read_text(encoding="utf-8")
    if found.count(before) != 1:
        raise Differs(f"{path} has {found.count(before)} times what is to be replaced:\n{before}")
    path.write_text(found.replace(before, after), encoding="utf-8")


def _run_python(page: Path, block: Block, namespace: dict[str, Any], check: Check) -> None:
    code = compile("\n" * (block.line - 1) + block.text, page.name, "exec")
    printed, error = io.StringIO(), None
    with redirect_stdout(printed):
        try:
            exec(code, namespace)
        except Exception as raised:
            if block.output is None:
                raise
            error = f"{type(raised).__name__}: {raised}"
    check(f"{page.name}:{block.line}", block.output, printed.getvalue(), error)


def _run_commands(page: Path, block: Block, check: Check) -> None:
    from typer.testing import CliRunner

    from autopar.cli import app

    for command, output in commands_of(block.text):
        words = shlex.split(command)
        if words[0] == "pytest":
            _run_tests(f"{page.name}:{block.line}", words[1:])
            continue
        if words[0] != "autopar":
            raise Differs(f"{page.name}:{block.line}: {command!r} is neither autopar nor pytest")
        found = CliRunner().invoke(app, words[1:])
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        check(f"{page.name}:{block.line}", output, found.output, None)


def _run_tests(where: str, arguments: Sequence[str]) -> None:
    """Runs tests in the current directory, which have to pass; the solver's loops as plain Python."""
    run = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    surrounding = {**os.environ, "PYTHONPATH": os.getcwd(), "NUMBA_DISABLE_JIT": "1"}
    found = subprocess.run(run, env=surrounding, capture_output=True, text=True, check=False)
    if found.returncode:
        raise Differs(f"{where}: the tests fail\n{found.stdout}{found.stderr}")


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """Each command behind a `$`, over as many lines as end in a backslash, with the lines below it."""
    for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def compare(where: str, expected: str | None, printed: str, error: str | None) -> None:
    """Compares what a block shows with what its page says; nothing has to be said of what is only printed.

    Raises:
      Differs: it is something else.
    """
    if expected is None:
        if printed.strip():
            raise Differs(f"{where}: prints, and the page shows no output:\n{printed}")
        return
    found = f"{printed}{error or ''}"
    matches = _words_match if error else _lines_match
    if not matches(expected, found):
        raise Differs(f"{where}: the page says\n{expected}\nand it shows\n{found}")


def _words_match(expected: str, found: str) -> bool:
    parts = (
        re.escape(" ".join(part.split())) for part in re.split(r"(?<!\S)\.\.\.(?!\S)", expected)
    )
    return re.fullmatch(r"\s*.*?\s*".join(parts), " ".join(found.split())) is not None


def _lines_match(expected: str, found: str) -> bool:
    lines = [line.rstrip() for line in expected.strip("\n").splitlines()]
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + r"\n" for line in lines
    )
    text = "".join(f"{line.rstrip()}\n" for line in found.strip("\n").splitlines())
    return re.fullmatch(pattern, text) is not None
