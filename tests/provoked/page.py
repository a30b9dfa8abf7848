"""Page: docs/reference/messages.md, every message by its class, with the program or the test that provokes it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.provoked import programs
from tests.provoked.provoke import Message, Program, code_of, programs_of, provoke, title_of
from tests.provoked.sites import KINDS, all_sites

TARGET = Path(__file__).resolve().parents[2] / "docs" / "reference" / "messages.md"
BY_TESTS = Path(__file__).with_name("by_tests.toml")
PROGRESS = "Progress"
HEAD = """# Messages

What does autopar say, and what makes it say so? `python -m tests.provoked` writes this page: it runs each program, and
shows its message. Errors and warnings are in `autopar.errors`; a warning is shown as the error that it becomes under
`warnings.simplefilter("error")`. The command line says the same in a line, with exit code 2. What takes more than a
program, such as several processes, stands [at the end](#parameter-servers-on-ray): its text, with an ellipsis for what
is filled in, and the test that provokes it.

Names that begin with `_` are helpers, in `tests/provoked/programs/`. All programs run on eight virtual devices, and
begin with:"""


def names() -> list[str]:
    """The modules with programs; none is imported."""
    return [one.name for one in pkgutil.iter_modules(programs.__path__) if one.name[0] != "_"]


def module(name: str) -> ModuleType:
    """A module with programs."""
    return importlib.import_module(f"{programs.__name__}.{name}")


@dataclass(frozen=True)
class Section:
    """Messages that no program meets: what they are about, and by the names of their sites the tests that provoke them.

    Tests are named as pytest names them.
    """

    title: str
    about: str
    tests: Mapping[str, str]

    def text(self) -> str:
        """As Markdown, by class; the sites stand in comments."""
        messages = [
            f"<!-- {site.name} -->\n\n```text\n{site.kind}: {site.template}\n```\n\n`{self.tests[site.name]}`"
            for site in all_sites()
            if site.name in self.tests
        ]
        return "\n\n".join([f"## {self.title}", self.about, *messages])


def sections() -> list[Section]:
    """What only tests provoke."""
    read = tomllib.loads(BY_TESTS.read_text(encoding="utf-8"))
    return [Section(**given) for given in read.values()]


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
    parts += [section.text() for section in sections()]
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
