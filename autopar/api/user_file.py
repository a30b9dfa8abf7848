"""The user's own file and words on the command line: what to plan, on which mesh, within which memory."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from autopar.errors import BadArgument

STANDARD_OUTPUT = Path("-")
_MESH_FORM = "expected NAME=SIZE,NAME=SIZE with sizes >= 1, for example data=2,model=4"
_SIZE_FORM = (
    "expected a number of bytes, with or without a unit, for example 16GiB, 512MiB, 80GB or 1e9"
)
_TASK_FORM = "(fn, example_args) or (fn, example_args, options)"


@dataclass(frozen=True)
class PlanningTask:
    """What a user's file asks to plan. `options` are keywords of autopar.plan, or arguments of `fn` by name."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any]


def parse_mesh(text: str) -> dict[str, int]:
    """Axis sizes by name from "data=2,model=4", major to minor.

    Raises:
      BadArgument: if `text` has another form, or names an axis twice.
    """
    axes: dict[str, int] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(\d{1,9})\s*", part)
        if found is None or int(found[2]) < 1:
            raise BadArgument(f"--mesh {text!r}: {part!r} is no axis; {_MESH_FORM}")
        if found[1] in axes:
            raise BadArgument(f"--mesh {text!r} names axis {found[1]!r} twice; {_MESH_FORM}")
        axes[found[1]] = int(found[2])
    return axes


def parse_size(text: str) -> int:
    """Bytes from "16GiB", "16GB", "512MiB" or "1e9"; units in either case, fractions of a byte dropped.

    Raises:
      BadArgument: if `text` has another form, or is less than a byte.
    """
    from autopar.api.sizes import parsed_size

    size = parsed_size(text)
    if size is None:
        raise BadArgument(f"--memory-limit {text!r}: {_SIZE_FORM}")
    return size


def parse_target(text: str) -> tuple[Path, str]:
    """The file and the function's name from "FILE.py:FUNCTION".

    Raises:
      BadArgument: if `text` has another form, or there is no such file.
    """
    file, _, function = text.rpartition(":")
    if text.endswith(".json") and Path(text).is_file():
        raise BadArgument(
            f"{text!r} is a saved plan, without its function: name that, as FILE.py:FUNCTION"
        )
    if not file.endswith(".py") or not function.isidentifier():
        raise BadArgument(f"{text!r} is neither FILE.py:FUNCTION nor a saved PLAN.json")
    if not Path(file).is_file():
        raise BadArgument(f"{text!r}: there is no file {file!r}")
    return Path(file), function


def check_writable(path: Path | None) -> None:
    """Refuses a file that cannot be written, before the time for planning is spent.

    Raises:
      BadArgument: if `path` is a directory, or lies in none.
    """
    if path == STANDARD_OUTPUT:
        return
    if path is not None and path.is_dir():
        raise BadArgument(f"cannot write {str(path)!r}: it is a directory; name a file")
    if path is not None and not path.parent.is_dir():
        raise BadArgument(f"cannot write {str(path)!r}: there is no directory {str(path.parent)!r}")


def load_task(path: Path, name: str) -> PlanningTask:
    """What function `name` of the file at `path` asks to plan. The file is run, as an import would.

    Raises:
      BadArgument: if the file or the function raises, there is no such function, or it returns something else.
    """
    function = getattr(run_file(path), name, None)
    if not callable(function):
        raise BadArgument(f"{path} has no function {name!r}")
    with blamed_on(path, f"{name}()"):
        result: object = function()
    kind = type(result).__name__
    parts = cast("tuple[Any, ...]", result) if isinstance(result, tuple) else ()
    task = _task_of(parts)
    if task is None:
        found = f"({', '.join(type(part).__name__ for part in parts)})" if parts else kind
        raise BadArgument(f"{path}:{name} must return {_TASK_FORM}, it returned {found}")
    return task


def load_layout(text: str) -> tuple[str, Sequence[Any]]:
    """The name and the constraints of a layout of the user's, which a function returns: "FILE.py:FUNCTION".

    Raises:
      BadArgument: as `load_task`.
    """
    path, name = parse_target(text)
    function = getattr(run_file(path), name, None)
    if not callable(function):
        raise BadArgument(f"{path} has no function {name!r}")
    with blamed_on(path, f"{name}()"):
        parts: object = function()
    if not isinstance(parts, list | tuple):
        raise BadArgument(
            f"{path}:{name} must return constraints, [autopar.pin(...), ...]; it returned "
            f"{type(parts).__name__}"
        )
    return name, cast("Sequence[Any]", parts)


def _task_of(parts: Sequence[Any]) -> PlanningTask | None:
    """The task that a function's result stands for; None if it has another form."""
    if len(parts) not in (2, 3):
        return None
    fn, args, *rest = parts
    options: Any = rest[0] if rest else {}
    if not (callable(fn) and isinstance(args, tuple | list) and isinstance(options, Mapping)):
        return None
    return PlanningTask(fn, tuple(cast("Sequence[Any]", args)), cast("Mapping[str, Any]", options))


def run_file(path: Path) -> object:
    """The module of the file at `path`, which is run as an import would.

    Raises:
      BadArgument: it raises.
    """
    module_name = f"_autopar_report_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.resolve().parent))
    with blamed_on(path, "the file"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def blamed_on(path: Path, what: str) -> Generator[None]:
    """Turns whatever the user's code raises into one line: the exception and where in the file it came from."""
    try:
        yield
    except (Exception, SystemExit) as error:
        last = traceback.format_exception_only(error)[-1].strip()
        raise BadArgument(f"{path}: {what} raised {last}{_location(error, path)}") from error


def _location(error: BaseException, path: Path) -> str:
    """The innermost line of the user's file that `error` passed through; "" if it passed through none."""
    if isinstance(error, SyntaxError):
        return f" ({error.filename}:{error.lineno})"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == path
    ]
    return f" ({path}:{lines[-1]})" if lines else ""
