"""Sites: where in autopar an error or a warning of autopar.errors is made, found in the source."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autopar import errors

ROOT = Path(__file__).resolve().parents[2] / "autopar"
KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.AutoparError | Warning)
}
_SHOWN = 60
"""Letters of a message that its name holds."""


@dataclass(frozen=True)
class Site:
    """A call that makes a message: lines `first` to `last` of a file of autopar, named by file, class and text.

    `kind` is the class; `template` the whole text, with an ellipsis for what is filled in.
    """

    file: str
    first: int
    last: int
    name: str
    kind: str
    template: str


@cache
def all_sites() -> tuple[Site, ...]:
    """Every site, by file and line; where two have one name, the second is `... (2)`."""
    found: list[Site] = []
    seen = Counter[str]()
    for path in sorted(ROOT.rglob("*.py")):
        file = str(path.relative_to(ROOT))
        for call, kind, where in sorted(_calls(path), key=lambda one: one[0].lineno):
            text = _text(call)
            name = " ".join(f"{file}: {kind}: {text[:_SHOWN].strip() or where}".split())
            seen[name] += 1
            again = f" ({seen[name]})" if seen[name] > 1 else ""
            found.append(Site(file, call.lineno, call.end_lineno or 0, name + again, kind, text))
    return tuple(found)


def site_at(file: str, line: int) -> Site | None:
    """The innermost site that holds a line of a file, None if there is none."""
    holding = [s for s in all_sites() if s.file == file and s.first <= line <= s.last]
    return min(holding, key=lambda site: site.last - site.first, default=None)


def _calls(path: Path) -> Iterator[tuple[ast.Call, str, str]]:
    """Calls that make a message, with the class and the function around them."""

    def walk(node: ast.AST, where: str) -> Iterator[tuple[ast.Call, str, str]]:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef)
            if isinstance(child, ast.Call) and (kind := _kind(child)) is not None:
                yield child, kind, where
            yield from walk(child, child.name if is_function else where)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), "")


def _kind(call: ast.Call) -> str | None:
    """The class of the message that a call makes, None if it makes none."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if name in KINDS:
        return name
    given = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "category")]
    is_warning = name == "warn" and given and isinstance(given[0], ast.Name)
    return ast.unparse(given[0]) if is_warning and ast.unparse(given[0]) in KINDS else None


def _text(call: ast.Call) -> str:
    """The text that a call is given; what is filled in is an ellipsis."""
    texts = (node for node in ast.walk(call) if isinstance(node, ast.JoinedStr | ast.Constant))
    for node in texts:
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
            return "".join(map(str, parts)).strip()
        if isinstance(node.value, str):
            return node.value.strip()
    return ""
