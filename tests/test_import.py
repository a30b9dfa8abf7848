"""The package is imported in no time: what it needs comes with the first name that is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import autopar


def test_nothing_is_imported_before_a_name_is_used() -> None:
    """Not even JAX."""
    code = "import sys; before = {*sys.modules}; import autopar; print(*sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name.split(".")[0] for name in done.stdout.split()} & {
        "jax",
        "numpy",
        "ortools",
        "scipy",
        "numba",
        "rich",
    }


@pytest.mark.parametrize("name", autopar.__all__)
def test_a_name_is_that_of_its_module(name: str) -> None:
    imported = [
        (f"{node.module}", alias.name)
        for node in ast.walk(ast.parse(Path(autopar.__file__).read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    (home,) = [module for module, named in imported if named == name]
    found = (
        import_module(f"{home}.{name}") if home == "autopar" else getattr(import_module(home), name)
    )
    assert getattr(autopar, name) is found
    assert name in dir(autopar)


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'autopar' has no attribute 'plann'"):
        _ = autopar.plann


def test_a_plan_that_needs_no_cp_sat_imports_none_of_it() -> None:
    """OR-Tools brings pandas: they come with the first question that CP-SAT is asked."""
    code = (
        "import sys, jax, autopar; x = jax.ShapeDtypeStruct((64, 64), 'float32');"
        "autopar.plan(lambda a, b: a @ b, x, x, cluster='8xh100'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name.split(".")[0] for name in done.stdout.split()} & {"ortools", "pandas"}


def test_the_command_line_begins_without_jax() -> None:
    """Its help, its refusals and `autopar launch` need none of it."""
    code = "import sys, autopar.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name.split(".")[0] for name in done.stdout.split()} & {"jax", "numpy", "ortools"}
