"""The commands that check a program: what they print, what they write, and their exit codes."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autopar.cli import app

TASKS = """
import jax, numpy as np, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def placed(*spec):
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))
    return NamedSharding(mesh, P(*spec))

def project(x, w):
    return jnp.tanh(x @ w)

def gathered(x, w):
    return jax.lax.with_sharding_constraint(jnp.tanh(x @ w), placed("data", None))

shapes = jax.ShapeDtypeStruct((256, 512), jnp.float32), jax.ShapeDtypeStruct((512, 1024), jnp.float32)

def clean():
    rows = placed(("data", "model"))
    return jax.jit(project, in_shardings=(rows, placed()), out_shardings=rows), shapes

def found():
    return jax.jit(gathered, in_shardings=(placed("data"), placed(None, "model"))), shapes

def plain():
    return project, shapes

def told():
    def f(x):
        jax.debug.print("{}", x.sum())
        return x * 2
    return f, shapes[:1]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.py"
    path.write_text(TASKS, encoding="utf-8")
    return path


def run(*args: object) -> Any:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def test_lint_ends_with_0_where_nothing_is_found(file: Path) -> None:
    done = run("lint", f"{file}:clean", "--mesh", "data=2,model=4")
    assert done.exit_code == 0
    assert "Nothing found" in done.stdout


def test_lint_ends_with_1_where_something_is(file: Path) -> None:
    done = run("lint", f"{file}:found", "--mesh", "data=2,model=4")
    assert done.exit_code == 1
    assert "tasks.py:13" in done.stdout


def test_lint_tells_github_the_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    done = run("lint", "tasks.py:found", "--mesh", "data=2,model=4", "--github")
    assert done.exit_code == 1
    assert any(
        line.startswith("::warning file=tasks.py,line=13,title=autopar redistribution::")
        for line in done.stdout.splitlines()
    )


def test_lint_prints_json(file: Path) -> None:
    done = run("lint", f"{file}:found", "--cluster", "cpu8", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["findings"][0]["line"] == 13


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lint", "{file}:plain"], "nothing is sharded"),
        (["lint", "{file}:nothing"], "has no function 'nothing'"),
        (["lint", "{file}:found", "--mesh", "data=8,model=0"], "is no axis"),
        (["verify", "{file}:missing"], "has no function 'missing'"),
        (["verify", "{file}:plain", "--cluster", "nowhere"], "nowhere"),
        (
            ["source", "{file}:told", "--cluster", "cpu8"],
            "tasks.py:29 (f) calls a function of this process",
        ),
        (["source", "{file}:plain", "-o", "/no/such/folder/o.py"], "no directory"),
    ],
)
def test_errors_end_with_2(file: Path, arguments: list[str], said: str) -> None:
    done = run(*(argument.format(file=file) for argument in arguments))
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_verify_passes_a_plan(file: Path) -> None:
    done = run("verify", f"{file}:plain", "--mesh", "data=2,model=4", "--seed", 3)
    assert done.exit_code == 0
    assert "Verification of project: pass" in done.stdout


def test_verify_fails_with_1(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autopar.emit.local import products

    kept = products.dot_general

    def doubled(local: Any) -> Any:
        inner = kept(local)
        return lambda *operands: [2 * x for x in inner(*operands)]

    monkeypatch.setitem(_localisers(), "dot_general", doubled)
    done = run("verify", f"{file}:plain", "--cluster", "cpu8", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["results"][0]["difference"] > 0


def _localisers() -> dict[str, Any]:
    from autopar.emit.local import localize

    return localize._LOCALISERS


def test_source_is_written_or_printed(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "project.py"
    done = run("source", f"{file}:plain", "--cluster", "cpu8", "-o", out)
    assert done.exit_code == 0
    assert f"written: {out}" in done.stdout
    printed = run("source", f"{file}:plain", "--cluster", "cpu8").stdout
    assert printed == out.read_text(encoding="utf-8")
    assert "def project(x, w):" in printed
    ast.parse(printed)
