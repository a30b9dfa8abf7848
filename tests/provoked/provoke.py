"""Provoke: runs a program in a folder of its own, and says what it shows and where in autopar that was made."""

from __future__ import annotations

import inspect
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from autopar.errors import AutoparError
from tests.provoked.sites import KINDS, ROOT, site_at

Program = Callable[[], object]


@dataclass(frozen=True)
class Message:
    """What a program shows: the classes of the messages, their sites, and the text, without what differs by machine."""

    kinds: tuple[str, ...]
    sites: tuple[str, ...]
    text: str


def programs_of(module: ModuleType) -> list[Program]:
    """The programs of a module, in their order."""
    return [
        one
        for name, one in vars(module).items()
        if inspect.isfunction(one) and one.__module__ == module.__name__ and name[0] != "_"
    ]


def title_of(program: Program) -> str:
    """What a program is about: its name, in words."""
    return program.__name__.replace("_", " ").capitalize()


def code_of(program: Program) -> str:
    """The body of a program."""
    lines = inspect.getsource(program).splitlines()
    body = next(n for n, line in enumerate(lines) if line.rstrip().endswith(":")) + 1
    return textwrap.dedent("\n".join(lines[body:]))


def provoke(program: Program, under: Path) -> Message:
    """What a program shows, in a folder of its own under `under`; without classes where it is no error or warning."""
    printed = StringIO()
    folder = under / program.__name__
    with _in_folder(folder), _recorded() as made, warnings.catch_warnings():
        warnings.simplefilter("error")
        with redirect_stdout(printed), redirect_stderr(printed):
            try:
                program()
            except (AutoparError, Warning) as error:
                printed.write(f"{type(error).__name__}: {error}")

    shown = " ".join(printed.getvalue().split())
    met = [(error, where) for error, where in made if " ".join(str(error).split()) in shown]
    sites = (site_at(*where) for _, where in met)
    return Message(
        tuple(dict.fromkeys(type(error).__name__ for error, _ in met)),
        tuple(dict.fromkeys(site.name for site in sites if site is not None)),
        _without_machine(printed.getvalue(), str(folder)),
    )


@contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """In a folder that is new; it stays, as threads of orbax still look at it."""
    before = os.getcwd()
    folder.mkdir()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


Made = list[tuple[BaseException, tuple[str, int]]]


@contextmanager
def _recorded() -> Iterator[Made]:
    """Every error and warning of autopar that is made, with the file and the line that made it."""
    made: Made = []
    kinds = [AutoparError, *(kind for kind in KINDS.values() if issubclass(kind, Warning))]
    for kind in kinds:
        _record(kind, made)
    try:
        yield made
    finally:
        for kind in kinds:
            del kind.__init__


def _record(kind: type[Any], made: Made) -> None:
    plain = kind.__init__

    def recording(self: BaseException, *args: Any, **keywords: Any) -> None:
        plain(self, *args, **keywords)
        frame = sys._getframe(1)
        while frame.f_locals.get("self") is self and frame.f_back is not None:
            frame = frame.f_back
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(ROOT):
            made.append((self, (str(file.relative_to(ROOT)), frame.f_lineno)))

    kind.__init__ = recording


def _without_machine(text: str, folder: str) -> str:
    """The text without what another machine, or another edit of a program, changes."""
    text = text.replace(f"{folder}/", "").replace(folder, ".")
    text = text.replace(str(ROOT.parent), "/home/me")
    text = re.sub(r"\b\w+\.py:\d+( \(|\.)", r"model.py:7\1", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "0x7f…", text)
    text = re.sub(
        r"(?<!\.)\b[0-9a-f]{12,64}\b", "3e1d…", text
    )  # of a function, or of a plan in a cache
    text = re.sub(r"^\d+\.\d s: ", "0.1 s: ", text, flags=re.MULTILINE)
    text = re.sub(
        r"[\d,.]+ examples/s  wait \d+%  memory .*", "5,000.0 examples/s  wait 2%  ...", text
    )
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:6390", text)
    return re.sub(r"tests\.provoked\.programs\.\w+\.\w+\.<locals>", "model", text).strip()
