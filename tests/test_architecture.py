"""The architecture as a test: who may import whom, where JAX may be named, how long code may be, what is documented.

Every check reads source text only. Each has planted violations that it must report, and lawful neighbours that it
must leave alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("autopar", "cost_models")
MODULE_STATEMENTS = 330
FUNCTION_STATEMENTS = 42
AIRLESS_LINES = 12
# _compat: what jax.debug.print in the user's function prints
PRINTING_ROOMS = {
    "cli",
    "report",
    "demo",
    "_compat",
}
JAX_ROOMS = {
    "trace",
    "emit",
    "microbatch",
    "inspect",
    "api",
    "operators",
    "discover",
    "calibration",
    "distributed",
    "data",
    "checkpoint",
    "parameter_server",
    "trainer",
    "_compat",
    "_mesh",
}

# room -> the rooms that it may import. A room is a folder or a module right under autopar/, or all of cost_models;
# "autopar" is autopar/__init__.py. A new room needs a row here.
_INNER = (
    "core errors cost_models ops redistribute backends solve memory cost passes search trace emit inspect "
    "operators discover microbatch _compat _jit _mesh _payload calibration"
)
# the job around a step
_JOB = "distributed data checkpoint parameter_server trainer"
MAY_IMPORT: dict[str, frozenset[str]] = {
    room: frozenset(allowed.split())
    for room, allowed in {
        "cost_models": "",
        "errors": "",
        "_compat": "",
        "_jit": "",
        "_mesh": "_compat",
        "_payload": "",
        "core": "errors",
        "ops": "core errors",
        "redistribute": "core errors _jit",
        "solve": "errors _jit",
        "backends": "core errors ops redistribute cost_models",
        "memory": "core errors ops redistribute solve",
        "cost": "core errors ops redistribute backends solve memory cost_models",
        "passes": "core errors ops redistribute memory cost cost_models",
        "search": "core errors ops redistribute backends solve memory cost passes",
        "trace": "core errors _compat _mesh _payload",
        "operators": "errors ops _compat _mesh _payload",
        "discover": "core errors ops _compat _mesh _payload",
        "calibration": "errors cost_models _compat",
        "emit": "core errors backends _compat _mesh _payload",
        "microbatch": "core errors ops passes search trace emit _compat _mesh",
        "inspect": "core errors emit",
        "report": _INNER,
        "api": f"{_INNER} report",
        "distributed": "errors emit _compat",
        "data": "errors emit api _compat",
        "checkpoint": "errors emit api _compat",
        "parameter_server": "core errors emit api _compat",
        "trainer": "core errors emit api checkpoint _compat",
        "autopar": f"{_INNER} report api {_JOB}",
        "demo": f"{_INNER} report api autopar",
        "commands": "errors cost_models _compat api",
        "cli": f"{_INNER} report api autopar demo commands {_JOB}",
        "__main__": "cli",
    }.items()
}


@dataclass(frozen=True)
class Source:
    """One file of the repository, parsed."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The room that the file is in."""
        first, *rest = self.path.parts
        if first != "autopar":
            return first
        return "autopar" if rest == ["__init__.py"] else rest[0].removesuffix(".py")

    def at(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


Check = Callable[[Source], Iterator[str]]


@cache
def sources(root: Path) -> list[Source]:
    """The Python files of both packages under `root`, read once."""
    paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [
        Source(path.relative_to(root), text, ast.parse(text))
        for path, text in zip(paths, texts, strict=True)
    ]


def violations(root: Path, check: Check) -> list[str]:
    return [violation for source in sources(root) for violation in check(source)]


# The checks -----------------------------------------------------------------------------------------------------------


def imports_go_inwards(source: Source) -> Iterator[str]:
    if source.room not in MAY_IMPORT:
        yield f"{source.path}: room {source.room!r} has no row in MAY_IMPORT"
        return
    for node, name in _imported(source):
        room = _room_of(name)
        if room and room != source.room and room not in MAY_IMPORT[source.room]:
            yield f"{source.at(node)}: {source.room} imports {room} ({name})"


def jax_stays_at_the_ends(source: Source) -> Iterator[str]:
    if source.room in JAX_ROOMS:
        return
    for node, name in _imported(source):
        if _is_jax(name):
            yield f"{source.at(node)}: {source.room} imports {name}"


def versions_are_told_apart_in_compat(source: Source) -> Iterator[str]:
    if source.room == "_compat":
        return
    bound = _names_bound_to_jax(source)
    for node in ast.walk(source.tree):
        if (reason := _version_test(node, bound)) is not None:
            yield f"{source.at(node)}: {reason} outside _compat"


def modules_are_short(source: Source) -> Iterator[str]:
    count = _statements(source.tree)
    if count > MODULE_STATEMENTS:
        yield f"{source.path}: {count} statements, the budget is {MODULE_STATEMENTS}"


def functions_are_short(source: Source) -> Iterator[str]:
    for node in _functions(source.tree):
        count = _statements(node) - (ast.get_docstring(node) is not None)
        if count > FUNCTION_STATEMENTS:
            yield (
                f"{source.at(node)}: {node.name} has {count} statements, "
                f"the budget is {FUNCTION_STATEMENTS}"
            )


def one_assignment_a_statement(source: Source) -> Iterator[str]:
    """But for swaps, in which a later value is what an earlier name was."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                if len(targets) == len(values) and not _is_swap(targets, values):
                    yield f"{source.at(node)}: {len(targets)} assignments in a statement"
            case _:
                pass


def long_functions_have_air(source: Source) -> Iterator[str]:
    """A blank line between two steps of a function that is longer than `AIRLESS_LINES`."""
    lines = source.text.splitlines()
    for node in _functions(source.tree):
        body = node.body[ast.get_docstring(node) is not None :]
        if len(body) < 2:
            continue
        first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
        ends = [(one.end_lineno or one.lineno, two.lineno) for one, two in pairwise(body)]
        has_air = any(not line.strip() for end, begin in ends for line in lines[end : begin - 1])
        if last - first + 1 > AIRLESS_LINES and not has_air:
            yield f"{source.at(node)}: {node.name} has {last - first + 1} lines without a blank one"


def public_code_is_documented(source: Source) -> Iterator[str]:
    if not (ast.get_docstring(source.tree) or "").strip():
        yield f"{source.path}: no module docstring"
    for node, name in _public_definitions(source.tree.body, ""):
        if not (ast.get_docstring(node) or "").strip():
            yield f"{source.at(node)}: {name} has no docstring"


def only_the_ends_print(source: Source) -> Iterator[str]:
    if source.room in PRINTING_ROOMS:
        return
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        ):
            yield f"{source.at(node)}: {source.room} prints"


CHECKS: tuple[Check, ...] = (
    imports_go_inwards,
    jax_stays_at_the_ends,
    versions_are_told_apart_in_compat,
    modules_are_short,
    functions_are_short,
    one_assignment_a_statement,
    long_functions_have_air,
    public_code_is_documented,
    only_the_ends_print,
)


# What they stand on ---------------------------------------------------------------------------------------------------


def _imported(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Every import with the full name it reaches, wherever it stands: in functions and under TYPE_CHECKING too."""
    package = source.path.parent.parts
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = package[: len(package) - node.level + 1] if node.level else ()
            base = [*inside, *(node.module or "").split(".")] if node.module else [*inside]
            yield from ((node, ".".join([*base, alias.name])) for alias in node.names)


def _room_of(name: str) -> str | None:
    """The room that an imported name lies in; None for what is not this project's."""
    first, *rest = name.split(".")
    if first not in PACKAGES:
        return None
    if first == "cost_models":
        return first
    return rest[0] if rest and rest[0] in MAY_IMPORT else "autopar"


def _is_jax(name: str) -> bool:
    return name.split(".")[0] in {"jax", "jaxlib"}


def _names_bound_to_jax(source: Source) -> set[str]:
    bound: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            bound |= {
                alias.asname or alias.name.split(".")[0]
                for alias in node.names
                if _is_jax(alias.name)
            }
        elif isinstance(node, ast.ImportFrom) and _is_jax(node.module or ""):
            bound |= {alias.asname or alias.name for alias in node.names}
    return bound


def _version_test(node: ast.AST, bound: set[str]) -> str | None:
    """Why `node` asks which JAX it runs on, or None."""
    match node:
        case ast.Attribute(attr="__version__" | "__version_info__", value=owner) if (
            _root_name(owner) in bound
        ):
            return "reads JAX's version"
        case ast.ImportFrom(module=str(module), names=names) if _is_jax(module):
            taken = {module.split(".")[-1], *(alias.name for alias in names)}
            return (
                "reads JAX's version"
                if taken & {"version", "__version__", "__version_info__"}
                else None
            )
        case ast.Call(func=func, args=[ast.Constant(value=str(name))]) if (
            _last_name(func) == "version"
        ):
            return "reads JAX's version" if _is_jax(name) else None
        case ast.Call(func=ast.Name(id="hasattr" | "getattr"), args=[owner, *_]) if (
            _root_name(owner) in bound
        ):
            return "asks what JAX has"
        case ast.Try(body=body) if any(_imports_jax(statement) for statement in body):
            return "tries an import of JAX"
        case _:
            return None


def _imports_jax(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(_is_jax(alias.name) for alias in node.names)
    return isinstance(node, ast.ImportFrom) and _is_jax(node.module or "")


def _root_name(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _last_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _statements(tree: ast.AST) -> int:
    """The statements within `tree`, itself not counted."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - isinstance(tree, ast.stmt)


def _is_swap(targets: list[ast.expr], values: list[ast.expr]) -> bool:
    """Whether one after the other the assignments would be others, or might be."""
    if any(isinstance(one, ast.Starred) for one in (*targets, *values)):
        return True
    bound: set[str] = set()
    named: set[str] = set()
    for target, value in zip(targets, values, strict=True):
        if bound & _names(value) or (not isinstance(target, ast.Name) and named & _names(target)):
            return True
        bound |= _names(target)
        named |= _names(target) if isinstance(target, ast.Name | ast.Tuple) else set()
    return False


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _public_definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[Definition, str]]:
    for node in body:
        if (
            isinstance(node, Definition)
            and not node.name.startswith("_")
            and not _is_overload(node)
        ):
            yield node, prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _public_definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from _public_definitions([*node.body, *node.orelse], prefix)


def _is_overload(node: Definition) -> bool:
    return any(_last_name(decorator) == "overload" for decorator in node.decorator_list)


# The repository obeys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_obeys(check: Check) -> None:
    assert violations(ROOT, check) == []


def test_both_packages_are_read() -> None:
    rooms = {source.room for source in sources(ROOT)}
    assert rooms >= {"core", "ops", "solve", "cost_models", "errors"}


def test_the_import_table_has_no_cycle() -> None:
    order = list(TopologicalSorter(MAY_IMPORT).static_order())
    assert set(order) == set(MAY_IMPORT)
    assert order[-1] == "__main__"


# The checks can fail --------------------------------------------------------------------------------------------------

DOC = '"""A module."""\n'
LONG_FUNCTION = DOC + "def f():\n" + "    pass\n" * (FUNCTION_STATEMENTS + 1)
AIRLESS = DOC + "def f():\n" + "    pass\n" * 13
LONG_DOCSTRING = DOC + "def f():\n    'Says\\\n    it.'\n" + "    pass\n" * FUNCTION_STATEMENTS

PLANTED = [
    (
        imports_go_inwards,
        "autopar/core/x.py",
        "from autopar.ops.rules.registry import rule_of",
        "core imports ops",
    ),
    (imports_go_inwards, "autopar/core/x.py", "from autopar import search", "core imports search"),
    (
        imports_go_inwards,
        "autopar/core/x.py",
        "from autopar import compile",
        "core imports autopar",
    ),
    (
        imports_go_inwards,
        "autopar/core/deep/x.py",
        "from ...ops.rules import registry",
        "core imports ops",
    ),
    (imports_go_inwards, "autopar/core/x.py", "from .. import ops", "core imports ops"),
    (
        imports_go_inwards,
        "autopar/core/x.py",
        "def f():\n    import autopar.ops.fusion",
        "core imports ops",
    ),
    (
        imports_go_inwards,
        "autopar/core/__init__.py",
        "from ..ops.rules import registry",
        "core imports ops",
    ),
    (imports_go_inwards, "autopar/ops/rules/x.py", "import cost_models", "ops imports cost_models"),
    (
        imports_go_inwards,
        "autopar/redistribute/x.py",
        "import autopar.cost",
        "redistribute imports cost",
    ),
    (
        imports_go_inwards,
        "autopar/solve/x.py",
        "from autopar.core.graph import OpGraph",
        "solve imports core",
    ),
    (
        imports_go_inwards,
        "autopar/passes/x.py",
        "from autopar.emit import run",
        "passes imports emit",
    ),
    (
        imports_go_inwards,
        "autopar/emit/x.py",
        "from autopar.trace import capture",
        "emit imports trace",
    ),
    (
        imports_go_inwards,
        "autopar/report/x.py",
        "from autopar.api import plan",
        "report imports api",
    ),
    (imports_go_inwards, "autopar/api.py", "from autopar.cli import app", "api imports cli"),
    (
        imports_go_inwards,
        "cost_models/x.py",
        "from autopar.errors import UnknownCluster",
        "cost_models imports errors",
    ),
    (imports_go_inwards, "autopar/attic/x.py", "", "room 'attic' has no row"),
    (imports_go_inwards, "autopar/attic.py", "", "room 'attic' has no row"),
    (jax_stays_at_the_ends, "autopar/cost/x.py", "import jax.numpy as jnp", "cost imports jax"),
    (
        jax_stays_at_the_ends,
        "autopar/ops/rules/x.py",
        "def f():\n    from jax import lax",
        "ops imports jax.lax",
    ),
    (
        jax_stays_at_the_ends,
        "autopar/_payload.py",
        "from jaxlib import xla_client",
        "_payload imports jaxlib",
    ),
    (jax_stays_at_the_ends, "cost_models/x.py", "import jax", "cost_models imports jax"),
    (
        versions_are_told_apart_in_compat,
        "autopar/api.py",
        "import jax\nif jax.__version__ < '1':\n    pass",
        "version",
    ),
    (
        versions_are_told_apart_in_compat,
        "autopar/api.py",
        "import jax as j\nv = j.__version_info__",
        "version",
    ),
    (versions_are_told_apart_in_compat, "autopar/api.py", "from jax import __version__", "version"),
    (versions_are_told_apart_in_compat, "autopar/api.py", "from jax.version import x", "version"),
    (
        versions_are_told_apart_in_compat,
        "autopar/report/x.py",
        "v = metadata.version('jaxlib')",
        "version",
    ),
    (
        versions_are_told_apart_in_compat,
        "autopar/emit/x.py",
        "from jax import lax\nhasattr(lax, 'pvary')",
        "asks what",
    ),
    (
        versions_are_told_apart_in_compat,
        "autopar/trace/x.py",
        "try:\n    from jax import x\nexcept ImportError:\n    pass",
        "tries an import",
    ),
    (
        modules_are_short,
        "autopar/core/x.py",
        "x = 1\n" * MODULE_STATEMENTS,
        f"{MODULE_STATEMENTS + 1} statements",
    ),
    (
        functions_are_short,
        "autopar/core/x.py",
        LONG_FUNCTION,
        f"f has {FUNCTION_STATEMENTS + 1} statements",
    ),
    (functions_are_short, "cost_models/x.py", LONG_FUNCTION.replace("def", "async def"), "f has"),
    (
        functions_are_short,
        "autopar/core/x.py",
        "class A:\n    def f():\n" + "        pass\n" * 43,
        "f has 43",
    ),
    (one_assignment_a_statement, "autopar/core/x.py", "a, b = 1, 2", "2 assignments"),
    (
        one_assignment_a_statement,
        "cost_models/x.py",
        "def f(x, y):\n    x.a, x.b[0] = 1, y",
        "2 assign",
    ),
    (long_functions_have_air, "autopar/core/x.py", AIRLESS, "f has 13 lines without a blank"),
    (public_code_is_documented, "autopar/core/x.py", "def f(): pass", "f has no docstring"),
    (public_code_is_documented, "autopar/core/x.py", "class A: pass", "A has no docstring"),
    (
        public_code_is_documented,
        "autopar/core/x.py",
        "class A:\n    'Doc.'\n    def f(self): pass",
        "A.f has no",
    ),
    (
        public_code_is_documented,
        "cost_models/x.py",
        "if True:\n    def f(): ''",
        "f has no docstring",
    ),
    (only_the_ends_print, "autopar/search/x.py", "print('here')", "search prints"),
    (only_the_ends_print, "cost_models/x.py", "def f(x):\n    print(x)", "cost_models prints"),
]


def plant(root: Path, path: str, text: str) -> None:
    """Writes one module, with a module docstring unless it has one, into an otherwise empty repository."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text if text.startswith(DOC) else DOC + text)


@pytest.mark.parametrize(("check", "path", "text", "expected"), PLANTED)
def test_a_planted_violation_is_caught(
    tmp_path: Path, check: Check, path: str, text: str, expected: str
) -> None:
    plant(tmp_path, path, text)
    found = violations(tmp_path, check)
    assert len(found) == 1
    assert expected in found[0]
    assert path in found[0]


def test_a_missing_module_docstring_is_caught(tmp_path: Path) -> None:
    (tmp_path / "cost_models").mkdir()
    (tmp_path / "cost_models" / "x.py").write_text("x = 1\n")
    assert violations(tmp_path, public_code_is_documented) == [
        "cost_models/x.py: no module docstring"
    ]


def test_every_check_has_a_planted_violation() -> None:
    assert {check for check, *_ in PLANTED} == set(CHECKS)


LAWFUL = [
    (
        imports_go_inwards,
        "autopar/core/x.py",
        "from .mesh import M\nfrom autopar.core import mesh\nimport ast",
    ),
    (
        imports_go_inwards,
        "autopar/cost/x.py",
        "import cost_models.topology\nfrom autopar.solve import problem",
    ),
    (
        imports_go_inwards,
        "autopar/cli.py",
        "from autopar import compile\nfrom autopar.demo import run",
    ),
    (jax_stays_at_the_ends, "autopar/emit/x.py", "import jax"),
    (jax_stays_at_the_ends, "autopar/cost/x.py", "import jaxtyping"),
    (
        versions_are_told_apart_in_compat,
        "autopar/_compat.py",
        "import jax\nnew = jax.__version_info__ > (0, 11)",
    ),
    (
        versions_are_told_apart_in_compat,
        "autopar/api.py",
        "import numpy\nv = numpy.__version__\nhasattr(v, 'x')",
    ),
    (versions_are_told_apart_in_compat, "autopar/api.py", "v = metadata.version('autopar')"),
    (modules_are_short, "autopar/core/x.py", "x = 1\n" * (MODULE_STATEMENTS - 1)),
    (functions_are_short, "autopar/core/x.py", LONG_DOCSTRING),
    (one_assignment_a_statement, "autopar/core/x.py", "a, b = b, a"),
    (one_assignment_a_statement, "cost_models/x.py", "def f(x):\n    x.a, x.b = x.b, x.a"),
    (one_assignment_a_statement, "autopar/core/x.py", "a, b = divmod(7, 2)"),
    (one_assignment_a_statement, "autopar/core/x.py", "a, b = 1, a + 1"),
    (long_functions_have_air, "autopar/core/x.py", AIRLESS.replace("pass\n", "pass\n\n", 1)),
    (long_functions_have_air, "autopar/core/x.py", AIRLESS.replace("    pass\n", "", 1)),
    (
        public_code_is_documented,
        "autopar/core/x.py",
        "def _f(): pass\nclass _A:\n    def f(self): pass",
    ),
    (public_code_is_documented, "autopar/core/x.py", "def f():\n    'Doc.'\n    def inner(): pass"),
    (only_the_ends_print, "autopar/demo.py", "print('here')"),
    (only_the_ends_print, "autopar/core/x.py", "console.print('here')"),
]


@pytest.mark.parametrize(("check", "path", "text"), LAWFUL)
def test_lawful_code_is_left_alone(tmp_path: Path, check: Check, path: str, text: str) -> None:
    plant(tmp_path, path, text)
    assert violations(tmp_path, check) == []


# No circles ----------------------------------------------------------------------------------------------------------


def circle(root: Path) -> list[str]:
    """Modules that import one another while they are imported, first and last the same; [] if there are none.

    Imports in functions are left out, and those for types alone.
    """
    read = {_module_name(source.path): source for source in sources(root)}
    arrows = {
        name: _imported_at_once(source) & read.keys() - {name} for name, source in read.items()
    }
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported_at_once(source: Source) -> set[str]:
    """The modules, and names in modules, that a module's own statements import."""
    body = [node for node in source.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {name for _, name in _imported(Source(source.path, source.text, ast.Module(body, [])))}
    froms = {
        node.module
        for node in body
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }
    return names | froms


def test_no_modules_import_one_another() -> None:
    assert circle(ROOT) == []


@pytest.mark.parametrize(
    ("package", "one"),
    [
        ("", "from autopar.core.y import g"),
        ("", "from autopar.core import y"),
        ("from autopar.core import y", ""),
    ],
)
def test_a_planted_circle_is_caught(tmp_path: Path, package: str, one: str) -> None:
    plant(tmp_path, "autopar/core/__init__.py", package)
    plant(tmp_path, "autopar/core/x.py", one)
    plant(tmp_path, "autopar/core/y.py", "from autopar.core import x")
    assert circle(tmp_path)


def test_late_imports_make_no_circle(tmp_path: Path) -> None:
    plant(tmp_path, "autopar/core/x.py", "def f():\n    from autopar.core import y")
    plant(
        tmp_path,
        "autopar/core/y.py",
        "from autopar.core import x\nif TYPE_CHECKING:\n    from autopar.core import y",
    )
    assert circle(tmp_path) == []
