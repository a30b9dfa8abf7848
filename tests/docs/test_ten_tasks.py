"""Ten tasks as somebody new does them: by README and docs alone, each within two minutes of reading and typing.

Every command and every line of code is taken from the page that is named; he changes his file's name and the like.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jax.sharding import PartitionSpec as P

import autopar
from tests.docs.pages import ROOT
from tests.docs.reader import MOST_LINES, MOST_WORDS, Reader, named

MINE = """
import jax
import jax.numpy as jnp


def train_step(params, x):
    def loss(p):
        return jnp.mean((jnp.tanh(x @ p["in"]) @ p["out"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), value


shape = jax.ShapeDtypeStruct
params = {"in": shape((4096, 16384), jnp.bfloat16), "out": shape((16384, 4096), jnp.bfloat16)}
batch = (shape((65536, 4096), jnp.bfloat16),)


def problem():
    return train_step, (params, *batch), {"donate_argnums": 0}
"""
SHARDED = """

def sharded():
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    data = NamedSharding(mesh, P("x"))
    whole = NamedSharding(mesh, P())
    return jax.jit(train_step, in_shardings=(whole, data), out_shardings=whole), (params, *batch)
"""
PLAN = "docs/guide/plan.md"
NO_MODEL = "from model import shapes, train_step\n\n -> "
ARGUMENTS = "*shapes() -> params, *batch"


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """He has `train.py`, and its names; at the end what he read and typed is held to two minutes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path("train.py").write_text(MINE)
    reader = Reader()
    exec(compile(MINE, str(tmp_path / "train.py"), "exec"), reader.names)
    yield reader
    assert 0 < reader.words <= MOST_WORDS
    assert 0 < reader.lines <= MOST_LINES


def planned(user: Reader) -> None:
    """He has a plan, from the page that reads one."""
    block = named(user.read(PLAN), "python", "autopar.plan")
    assert "Plan of train_step" in user.runs(block, model=NO_MODEL, args=ARGUMENTS)


def test_from_a_clone_to_a_first_plan(user: Reader) -> None:
    assert named(user.read("README.md", "Install"), "bash").text.startswith("pip install .")
    user.lines += 1
    command = named(user.read("docs/reference/cli.md"), "console", "autopar report")
    mine = "model.py:training_step -> train.py:problem"
    shown = user.types(command, "autopar report", mine=mine, limit="--memory-limit 16GiB -> ")
    assert shown.startswith("Plan of train_step\n cluster  8xh100")
    assert "proven" in shown


def test_why_is_this_gathered(user: Reader) -> None:
    held = [autopar.pin("params['in']", P("x")), autopar.pin("x", P("x"))]
    options = {"cluster": "8xh100", "mesh": {"x": 8}, "constraints": held}
    step, args, _ = user.names["problem"]()
    user.names["plan"] = autopar.plan(step, *args, **options)
    block = named(user.read(PLAN, "Why does it do that?"), "python", "explain")
    shown = user.runs(block, name="params['up'] -> params['in']")
    assert "placement  [x, -]" in shown
    assert "all_gather" in shown.partition("Collectives that move it")[2]


def test_which_of_two_plans(user: Reader) -> None:
    planned(user)
    shown = user.runs(
        named(user.read(PLAN, "Is it better than another?"), "python"), args=ARGUMENTS
    )
    assert re.match(r"this .* apart, .*(faster, with a probability|measure both)", shown)


def test_what_if_links_were_half_as_fast(user: Reader) -> None:
    planned(user)
    block = named(user.read(PLAN, "What if links were half as fast?"), "python")
    now, halved = re.findall(r"([\d.]+) us", user.runs(block))
    assert float(now) < float(halved) < 2 * float(now)


def test_fit_into_40_gib(user: Reader) -> None:
    block = named(user.read("docs/guide/memory.md"), "python", "memory_limit_bytes")
    shown = user.runs(block, limit='"170MiB" -> "40GiB"', check="170 * 2**20 < -> 40 * 2**30 >")
    assert shown == ""
    tight = user.names["tight"]
    assert tight.summary.memory_limit_bytes == 40 * 2**30 >= tight.peak_memory_bytes


def test_my_own_operator(user: Reader) -> None:
    block = named(user.read("docs/guide/operators.md", "A function as one operator"), "python")
    assert (
        user.runs(block, name="def product( -> def mine(", use="centred(product( -> centred(mine(")
        == ""
    )
    kept = autopar.SearchOptions(operators="kept")
    args = user.names["x"], user.names["w"]
    plan = autopar.plan(user.names["loss"], *args, cluster="cpu8", mesh={"x": 8}, options=kept)
    assert [row.kind for row in plan.summary.operators].count("mine") == 1


def test_my_own_cluster(user: Reader) -> None:
    file = named(user.read("docs/guide/clusters.md", "A file of your own"), "toml")
    user.saves(
        file,
        "ours.toml",
        name='"mine" -> "ours"',
        speed="12.5e9 -> 25e9",
        gpus="100 Gbit -> 200 Gbit",
    )
    command = named(user.read("docs/reference/cli.md"), "console", "autopar report")
    mine = "model.py:training_step --cluster 8xh100 --mesh data=2,model=4 --memory-limit 16GiB"
    shown = user.types(
        command, "autopar report", mine=f"{mine} -> train.py:problem --cluster ours.toml"
    )
    assert " cluster  ours, mesh " in shown
    assert "(32 devices)" in shown


def test_export_to_source(user: Reader) -> None:
    user.read("docs/guide/source.md")
    command = named(user.read("docs/guide/source.md", "From the command line"), "console")
    shown = user.types(command, "autopar source", mine="model.py:problem -> train.py:problem")
    assert shown.startswith("written: step.py, ")
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(Path("step.py").read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if isinstance(node, ast.Import)
    }
    assert "autopar" not in imported


def test_lint_my_code(user: Reader) -> None:
    Path("train.py").write_text(MINE + SHARDED)
    command = named(user.read("docs/guide/lint.md"), "console")
    mine = "hand.py:problem --mesh data=2,model=4 -> train.py:sharded --cluster 8xh100"
    shown = user.types(command, "autopar lint", mine=mine)
    assert "Lint of train_step" in shown
    assert "findings" in shown


def test_explain_the_error(user: Reader) -> None:
    block = named(user.read("docs/guide/memory.md"), "python", "memory_limit_bytes")
    met = user.runs(block, limit='"170MiB" -> "30MiB"')
    kind, _, message = met.partition(": ")
    assert kind == "NoFeasiblePlan"
    assert "raise the limit" in user.looks_up("docs/guide/troubleshooting.md", kind)
    assert f"\n## {kind}\n" in (ROOT / "docs/reference/messages.md").read_text()

    least = re.search(r"Raise memory_limit_bytes \(to ([\d,]+) or more\)", message)
    assert least is not None
    limit = least[1].replace(",", "")
    assert user.runs(block, limit=f'"170MiB" -> {limit}', check=f"170 * 2**20 < -> {limit} <") == ""
