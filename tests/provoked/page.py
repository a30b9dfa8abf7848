"""Page: docs/reference/messages.md, every message by its class, with the program that provokes it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from tests.provoked import programs
from tests.provoked.provoke import Message, Program, code_of, programs_of, provoke, title_of
from tests.provoked.sites import KINDS

TARGET = Path(__file__).resolve().parents[2] / "docs" / "reference" / "messages.md"
UNPROVOKED = Path(__file__).with_name("unprovoked.toml")
PROGRESS = "Progress"
HEAD = """# Messages

What does autopar say, and what makes it say so? `python -m tests.provoked` writes this page: it runs each program, and
shows its message. Errors and warnings are in `autopar.errors`; a warning is shown as the error that it becomes under
`warnings.simplefilter("error")`. The command line says the same in a line, with exit code 2.

Names that begin with `_` are helpers, in `tests/provoked/programs/`. All programs run on eight virtual devices, and
begin with:"""


def names() -> list[str]:
    """The modules with programs; none is imported."""
    return [one.name for one in pkgutil.iter_modules(programs.__path__) if one.name[0] != "_"]


def module(name: str) -> ModuleType:
    """A module with programs."""
    return importlib.import_module(f"{programs.__name__}.{name}")


def unprovoked() -> Mapping[str, Sequence[str]]:
    """The sites that no program meets, by the reason why not."""
    return tomllib.loads(UNPROVOKED.read_text(encoding="utf-8"))


def entry(program: Program, message: Message) -> str:
    """A program and its message; the sites stand in comments."""
    sites = "".join(f"<!-- {site} -->\n" for site in message.sites)
    return (
        f"**{title_of(program)}**\n\n{sites}\n```python\n{code_of(program)}\n```\n\n"
        f"```text\n{message.text}\n```"
    )


def page(folder: Path) -> str:
    """The page, as Markdown; its programs run in folders under `folder`."""
    entries = [
        (message.kinds[-1] if message.kinds else PROGRESS, entry(program, message))
        for name in names()
        for program in programs_of(module(name))
        for message in [provoke(program, folder)]
    ]
    prelude = inspect.getsource(module("_shared")).partition('"""\n\n')[2].strip()
    parts = [HEAD, f"```python\n{prelude}\n```", *_by_kind(entries)]
    return "\n\n".join(parts) + "\n"


def _by_kind(entries: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield f"## {PROGRESS}"
    yield from (text for one, text in entries if one == PROGRESS)
    for name, kind in KINDS.items():
        mine = [text for one, text in entries if one == name]
        if mine:
            yield f"## {name}"
            yield inspect.getdoc(kind) or ""
            yield from mine
