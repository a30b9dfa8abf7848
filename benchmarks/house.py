"""How large is each room of the package, how dense is its code, and who imports whom?

    python -m benchmarks.house [--json FILE] [--record]

Rooms are the packages below `autopar` (those of `solve` each by itself) and `cost_models`. Printed of each: files,
lines and statements; statements of functions (median, 90th percentile, longest; statements within a function, its
docstring left out); the share of comment lines, and of blank lines inside functions; imports from other rooms (arrows),
and circles of modules that import one another while they are imported. Then the names of the modules of each room.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import networkx as nx
import numpy as np
from rich import box
from rich.table import Table

from benchmarks.record import Screen, add_record_option, record

ROOT = Path(__file__).parent.parent
PACKAGES = ("autopar", "cost_models")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """One file: its room, lines, statements, comment lines, those of its functions, blank lines, and what it imports.

    `written` are all statements, `statements` those of each function.
    """

    name: str
    room: str
    lines: int
    written: int
    comments: int
    blanks: int
    inside: int
    statements: tuple[int, ...]
    imports: frozenset[str]


@dataclass(frozen=True)
class Room:
    """The figures of one room; `arrows` are pairs of modules of which the other is in another room."""

    name: str
    files: int
    lines: int
    written: int
    median: float
    p90: float
    longest: int
    comment_share: float
    blank_share: float
    arrows: int
    modules: tuple[str, ...]


def module_of(path: Path) -> Module:
    """What one file holds."""
    text = path.read_text()
    tree, parts = ast.parse(text), path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts).removesuffix(".__init__")
    spans = [
        (f.lineno, f.end_lineno or f.lineno) for f in ast.walk(tree) if isinstance(f, DEFINITIONS)
    ]
    inside = {line for first, last in spans for line in range(first, last + 1)}
    blank = {n for n, line in enumerate(text.splitlines(), 1) if not line.strip()}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = sum(token.type == tokenize.COMMENT for token in tokens)
    counts = tuple(_statements(f) for f in ast.walk(tree) if isinstance(f, DEFINITIONS))
    room = _room(parts)
    blanks = len(inside & blank)
    return Module(
        name,
        room,
        text.count("\n"),
        sum(isinstance(node, ast.stmt) for node in ast.walk(tree)),
        comments,
        blanks,
        len(inside),
        counts,
        frozenset(_imports(tree)),
    )


def _room(parts: Sequence[str]) -> str:
    depth = 2 if parts[:2] == ("autopar", "solve") else 1
    return ".".join(parts[: depth + 1] if len(parts) > depth + 1 else parts[:depth])


def _statements(function: ast.AST) -> int:
    """The statements of a function, those of its inner functions and its docstring left out."""
    body = getattr(function, "body", [])
    own = (
        body[1:]
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        else body
    )
    return sum(1 + _nested(statement) for statement in own)


def _nested(statement: ast.stmt) -> int:
    if isinstance(statement, (*DEFINITIONS, ast.ClassDef)):
        return 0
    return sum(1 + _nested(child) for child in _direct(statement))


def _direct(statement: ast.stmt) -> list[ast.stmt]:
    return [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)] + [
        inner
        for child in ast.iter_child_nodes(statement)
        if isinstance(child, ast.ExceptHandler | ast.match_case)
        for inner in child.body
    ]


def _imports(tree: ast.Module) -> Iterator[str]:
    """The modules, or names in modules, that are imported while the module is; not those for types alone."""
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module:
            yield statement.module
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)
        elif isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)


def arrows_of(modules: Sequence[Module]) -> nx.DiGraph:
    """Which module of the packages imports which."""
    known = {module.name for module in modules}
    graph = nx.DiGraph()
    graph.add_nodes_from(known)
    graph.add_edges_from(
        (module.name, other) for module in modules for other in module.imports & known
    )
    return graph


def rooms_of(modules: Sequence[Module], graph: nx.DiGraph) -> list[Room]:
    """The figures of every room, by name."""
    by_room: dict[str, list[Module]] = {}
    for module in modules:
        by_room.setdefault(module.room, []).append(module)
    where = {module.name: module.room for module in modules}
    return [_figures(name, by_room[name], graph, where) for name in sorted(by_room)]


def _figures(
    name: str, modules: Sequence[Module], graph: nx.DiGraph, where: Mapping[str, str]
) -> Room:
    counts = [count for module in modules for count in module.statements] or [0]
    lines = sum(module.lines for module in modules)
    out = sum(where[other] != name for module in modules for other in graph.successors(module.name))
    return Room(
        name,
        len(modules),
        lines,
        sum(module.written for module in modules),
        float(np.median(counts)),
        float(np.percentile(counts, 90)),
        max(counts),
        sum(module.comments for module in modules) / lines,
        sum(module.blanks for module in modules) / max(1, sum(module.inside for module in modules)),
        out,
        tuple(sorted(module.name.rsplit(".", 1)[-1] for module in modules)),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    add_record_option(parser)
    given = parser.parse_args(arguments)
    modules = [
        module_of(path) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
    ]
    graph = arrows_of(modules)
    rooms, console = rooms_of(modules, graph), Screen(width=150)
    table = Table(box=box.MARKDOWN)
    for n, head in enumerate(
        (
            "room",
            "files",
            "lines",
            "statements",
            "median",
            "p90",
            "longest",
            "comments",
            "blank",
            "arrows",
        )
    ):
        table.add_column(head, justify="right" if n else "left")
    for room in rooms:
        shares = (f"{100 * share:.1f} %" for share in (room.comment_share, room.blank_share))
        sizes = (
            f"{room.files}",
            f"{room.lines:,}",
            f"{room.written:,}",
            f"{room.median:.0f}",
            f"{room.p90:.0f}",
            f"{room.longest}",
        )
        table.add_row(room.name, *sizes, *shares, f"{room.arrows}")
    console.print(table)
    circles = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    total = f"{len(modules)} files, {sum(m.lines for m in modules):,} lines, "
    total += f"{sum(m.written for m in modules):,} statements, {graph.number_of_edges()} imports"
    console.print(f"{total}, {len(circles)} circles: {circles}", highlight=False)
    for room in rooms:
        console.print(f"{room.name}: {' '.join(room.modules)}", highlight=False)
    if given.json is not None:
        content = {"rooms": [asdict(room) for room in rooms], "circles": circles}
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    record(__file__, given.record, console.tables)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
