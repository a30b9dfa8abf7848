import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from autopar import SearchOptions, cli, demo
from autopar.api import compiled
from autopar.api.plan import Plan
from autopar.api.user_file import (
    check_writable,
    load_task,
    parse_mesh,
    parse_size,
    parse_target,
)
from autopar.cli import app
from autopar.errors import BadArgument, NoFeasiblePlan, UnsupportedPrimitiveWarning
from autopar.report.render import text

ROOT = Path(__file__).resolve().parents[1]

STEP = """
import jax, jax.numpy as jnp

def step(w, x):
    return jnp.mean(jnp.tanh(x @ w))

def task():
    return step, (jax.ShapeDtypeStruct((512, 64), jnp.float32), jax.ShapeDtypeStruct((16, 512), jnp.float32))

def train(w, x):
    return {"w": w - jax.grad(step)(w, x)}

def train_task():
    import autopar
    return train, task()[1], {"mesh": {"all": 8}, "constraints": (autopar.pin("w", jax.P("all")),)}

def follower_task():
    import autopar
    return step, task()[1], {"follow": autopar.plan(train, *task()[1], cluster="8xh100", **train_task()[2])}

def task_with_options():
    return step, task()[1], {"mode": "data_parallel", "mesh": {"all": 8}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(STEP)
    return path


def run(*args: object) -> Any:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def refused(*args: object) -> str:
    """The one line on stderr of a call that must be refused."""
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    line, rest = result.stderr.split("\n", 1)
    assert rest == ""
    return line.removeprefix("error: ")


def test_a_bound_is_verified_when_asked(file: Path) -> None:
    given = (f"{file}:task", "--cluster", "1x8xh100")
    plain = run("report", *given).stdout
    assert "Plan of step" in plain
    assert "bound re-checked" not in plain
    assert run("report", *given, "--verify").stdout.startswith("bound re-checked: no plan on mesh")


# Parsing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("16GiB", 16 * 2**30),
        ("16GB", 16 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1e9", 10**9),
        ("1.5 KiB", 1536),
        ("80gib", 80 * 2**30),
        ("2TB", 2 * 10**12),
        ("7", 7),
        ("7B", 7),
        ("0.5kb", 500),
        ("1.9B", 1),
    ],
)
def test_sizes(given_text: str, expected: int) -> None:
    assert parse_size(given_text) == expected


@pytest.mark.parametrize(
    "wrong",
    ["", "GiB", "16 G", "16 gigabytes", "-1GiB", "0", "0.3B", "1e999", "nan", "inf", "1,000"],
)
def test_wrong_sizes_are_quoted(wrong: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(repr(wrong))) as error:
        parse_size(wrong)
    assert "for example 16GiB" in str(error.value)


@given(st.integers(1, 2**50), st.sampled_from(["", "B", "KiB", "KB", "GiB", "TB"]))
def test_whole_numbers_of_units_are_exact(number: int, unit: str) -> None:
    base = {"": 1, "B": 1, "KiB": 2**10, "KB": 10**3, "GiB": 2**30, "TB": 10**12}[unit]
    assert parse_size(f"{number}{unit}") == number * base


def test_meshes_keep_their_order() -> None:
    assert list(parse_mesh("model=4, data=2").items()) == [("model", 4), ("data", 2)]


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True),
        st.integers(1, 10**6),
        min_size=1,
    )
)
def test_meshes_read_back(axes: dict[str, int]) -> None:
    parsed = parse_mesh(",".join(f"{name}={size}" for name, size in axes.items()))
    assert list(parsed.items()) == list(axes.items())


@pytest.mark.parametrize(
    "wrong",
    ["", "8", "data", "data=", "=2", "data=0", "data=-1", "data=2;model=4", "data=2,", "2x=4"],
)
def test_wrong_meshes_are_quoted(wrong: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(repr(wrong))) as error:
        parse_mesh(wrong)
    assert "for example data=2,model=4" in str(error.value)


def test_an_axis_named_twice() -> None:
    with pytest.raises(BadArgument, match="names axis 'a' twice"):
        parse_mesh("a=2,b=2,a=2")


def test_targets(file: Path) -> None:
    assert parse_target(f"{file}:task") == (file, "task")
    for wrong in ("model", f"{file}", f"{file}:", f"{file}:a b", "plan.txt", ":task"):
        with pytest.raises(BadArgument, match=r"neither FILE\.py:FUNCTION nor"):
            parse_target(wrong)
    with pytest.raises(BadArgument, match=r"there is no file 'gone\.py'"):
        parse_target("gone.py:task")


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    check_writable(None)
    check_writable(tmp_path / "new.json")
    with pytest.raises(BadArgument, match="it is a directory"):
        check_writable(tmp_path)
    with pytest.raises(BadArgument, match="there is no directory"):
        check_writable(tmp_path / "gone" / "x.json")


# The user's file ------------------------------------------------------------------------------------------------------


def test_a_task_with_and_without_options(file: Path) -> None:
    task = load_task(file, "task")
    assert task.fn.__name__ == "step"
    assert [a.shape for a in task.args] == [(512, 64), (16, 512)]
    assert task.options == {}
    assert load_task(file, "task_with_options").options["mode"] == "data_parallel"


def test_a_file_may_import_its_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "autopar_test_neighbour.py").write_text("def f(): pass\n")
    (tmp_path / "main.py").write_text(
        "from autopar_test_neighbour import f\ndef task(): return f, []\n"
    )
    assert load_task(tmp_path / "main.py", "task").args == ()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = (", "the file raised SyntaxError: '(' was never closed ({path}:1)"),
        ("\n1 / 0", "the file raised ZeroDivisionError: division by zero ({path}:2)"),
        ("raise SystemExit(3)", "the file raised SystemExit: 3 ({path}:1)"),
        ("import autopar_no_such_module", "No module named 'autopar_no_such_module' ({path}:1)"),
        (
            "def task():\n  def g():\n    raise KeyError('w')\n  g()",
            "task() raised KeyError: 'w' ({path}:3)",
        ),
        ("def task():\n  import json\n  json.loads('{')", "({path}:3)"),
        (
            "def task(x): pass",
            "task() raised TypeError: task() missing 1 required positional argument: 'x'",
        ),
        ("", "has no function 'task'"),
        ("task = 3", "has no function 'task'"),
        ("def task(): return 3", "it returned int"),
        ("def task(): return print", "it returned builtin_function_or_method"),
        ("def task(): return print, 3", "it returned (builtin_function_or_method, int)"),
        (
            "def task(): return print, (), []",
            "it returned (builtin_function_or_method, tuple, list)",
        ),
        ("def task(): return print, (), {}, 1", "must return (fn, example_args)"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, source: str, expected: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    line = refused("report", f"{path}:task")
    assert expected.format(path=path) in line
    assert str(path) in line
    assert "cli.py" not in line


# What is passed on ----------------------------------------------------------------------------------------------------


def recorded(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[dict[str, Any]]:
    """The keywords of every call of the planner, which does `act`."""
    calls: list[dict[str, Any]] = []

    def plan(fn: object, *args: object, **keywords: Any) -> object:
        calls.append(keywords)
        return act()

    monkeypatch.setattr(compiled, "plan", plan)
    return calls


def fail(error: Exception) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


def test_options_reach_the_planner(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = recorded(monkeypatch, fail(NoFeasiblePlan("nothing fits")))
    line = refused(
        *(
            "report",
            f"{file}:task",
            "--cluster",
            "8xh100",
            "--mesh",
            "data=2,model=4",
            "--memory-limit",
            "16GiB",
        ),
        *("--mode", "data_parallel", "--dump", tmp_path / "stages"),
    )
    assert line == "NoFeasiblePlan: nothing fits"
    assert calls == [
        {
            "cluster": "8xh100",
            "mesh": {"data": 2, "model": 4},
            "memory_limit_bytes": 16 * 2**30,
            "mode": "data_parallel",
            "dump": tmp_path / "stages",
            "options": SearchOptions(),
        }
    ]


def test_the_file_s_options_hold_unless_the_command_line_says_otherwise(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = recorded(monkeypatch, fail(NoFeasiblePlan("no")))
    refused("report", f"{file}:task")
    refused("report", f"{file}:task_with_options")
    refused("report", f"{file}:task_with_options", "--mode", "auto")
    assert [(call["mode"], call["mesh"]) for call in calls] == [
        ("auto", None),
        ("data_parallel", {"all": 8}),
        ("auto", {"all": 8}),
    ]


def test_messages_of_several_lines_become_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch, fail(NoFeasiblePlan("first\n  second")))
    assert refused("report", f"{file}:task") == "NoFeasiblePlan: first second"


def test_a_bug_of_autopar_is_not_hidden(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(monkeypatch, fail(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        run("report", f"{file}:task")


def test_warnings_are_one_line_each(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> object:
        import warnings

        warnings.warn("no rule\nfor 'x'", UnsupportedPrimitiveWarning, stacklevel=1)
        raise NoFeasiblePlan("no")

    recorded(monkeypatch, act)
    result = run("report", f"{file}:task")
    assert result.stderr.splitlines() == ["warning: no rule for 'x'", "error: NoFeasiblePlan: no"]


def test_nothing_is_planned_if_an_output_cannot_be_written(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = recorded(monkeypatch, fail(AssertionError()))
    for option in ("--json", "--html", "--save", "--timeline"):
        assert "there is no directory" in refused(
            "report", f"{file}:task", option, tmp_path / "gone" / "x"
        )
    assert calls == []


# The real thing -------------------------------------------------------------------------------------------------------


def test_a_front_is_searched_printed_and_saved(file: Path, tmp_path: Path) -> None:
    result = run(
        "front",
        f"{file}:task",
        "--cluster",
        "2xh100",
        "--mesh",
        "all=2",
        "--points",
        3,
        "--save",
        tmp_path,
        "--html",
        tmp_path / "page.html",
    )
    assert result.exit_code == 0, result.stderr
    assert "Time and memory of step" in result.stdout
    assert "Time against memory" in (tmp_path / "page.html").read_text()
    saved = sorted(tmp_path.glob("plan_*.json"))
    assert len(saved) == result.stdout.count("  all=2\n") >= 1
    assert [Plan.load(path).summary.function for path in saved] == ["step"] * len(saved)
    assert "there is no such directory" in refused(
        "front", f"{file}:task", "--save", tmp_path / "gone"
    )
    assert "points is 1" in refused("front", f"{file}:task", "--points", 1)
    assert "neither FILE.py" in refused("front", tmp_path / "plan.json")


def of_a_saved_plan(data: Any) -> Any:
    """The JSON of a report without what is searched for, which a saved plan does not hold."""
    for node in data["step"]["nodes"]:
        node["alternatives"] = []
    data["step"]["inputs"] = []
    return {**data, "rivals": []}


def test_a_function_is_planned_reported_and_saved(file: Path, tmp_path: Path) -> None:
    plan, page, data, stages = (
        tmp_path / name for name in ("plan.json", "page.html", "data.json", "stages")
    )
    trace = tmp_path / "trace.json"
    result = run(
        *("report", f"{file}:task", "--cluster", "8xh100", "--mesh", "data=2,model=4"),
        *("--save", plan, "--html", page, "--json", data, "--dump", stages, "--timeline", trace),
        "--no-compare",
    )
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    loaded = Plan.load(plan)
    assert loaded.summary.function == "step"
    assert loaded.summary.mesh == (("data", 2), ("model", 4))
    assert result.stdout == text(loaded.summary)
    assert "model.py:5" in run("report", plan, "--ops").stdout
    assert json.loads(data.read_text())["step_time_s"] == loaded.step_time_s
    assert "Plan of step" in page.read_text()
    assert any(stages.iterdir())
    assert any(
        "model.py:5" in event["name"] for event in json.loads(trace.read_text())["traceEvents"]
    )
    again = run("report", plan, "--json", tmp_path / "again.json")
    assert again.stdout == result.stdout
    again = json.loads((tmp_path / "again.json").read_text())
    assert again == of_a_saved_plan(json.loads(data.read_text()))


def test_json_goes_to_standard_output(file: Path, tmp_path: Path) -> None:
    given = (f"{file}:task", "--cluster", "8xh100", "--mesh", "all=8")
    saved = tmp_path / "plan.json"
    data = json.loads(run("report", *given, "--save", saved, "--json", "-").stdout)
    assert data["mesh"] == [["all", 8]]
    assert data["inputs"][0]["dims"] == [[], []] or data["inputs"][0]["dims"][0] == ["all"]
    assert [rival["name"] for rival in data["rivals"]][:2] == ["data parallel", "FSDP"]
    again = json.loads(run("report", saved, "--json", "-").stdout)
    assert again == of_a_saved_plan(data) != data


def test_details_are_told_when_asked(file: Path) -> None:
    given = ("report", f"{file}:task", "--cluster", "8xh100", "--mesh", "data=2,model=4")
    plain = run(*given)
    assert "instead" in plain.stdout
    assert all(title not in plain.stdout for title in ("Operators", "Largest", "Beside other"))
    told = run(*given, "--ops", "--collectives", "--memory", "--compare", "--why", "w").stdout
    for title in (
        "Operators, forward",
        "Largest at the peak",
        "Beside other layouts",
        "w, an input",
    ):
        assert title in told
    assert "next best" in told


def test_a_layout_of_ones_own_stands_beside(file: Path) -> None:
    file.write_text(
        STEP
        + """
def by_hand():
    import autopar
    return [autopar.pin("w", jax.P("all"))]

def wrong():
    return 3
"""
    )
    given = ("report", f"{file}:task", "--cluster", "8xh100", "--mesh", "all=8")
    told = " ".join(run(*given, "--against", f"{file}:by_hand").stdout.split())
    assert "by_hand" in told
    assert "must return constraints" in refused(*given, "--against", f"{file}:wrong")
    assert "has no function" in refused(*given, "--against", f"{file}:gone")
    assert "is planned already" in refused("report", "plan.json", "--against", f"{file}:by_hand")


def test_plans_are_explained_and_compared(file: Path, tmp_path: Path) -> None:
    given = (f"{file}:task", "--cluster", "8xh100", "--mesh", "all=8")
    told = run("explain", *given, "w", "model.py:5").stdout
    assert "w, an input of step" in told
    assert "Operators at model.py:5" in told
    assert "has no input, output or source line" in refused("explain", *given, "gone")

    one, other = tmp_path / "one.json", tmp_path / "other.json"
    run("report", *given, "--no-compare", "--save", one)
    run("report", *given, "--no-compare", "--save", other, "--mode", "data_parallel")
    assert "w, an input of step" in run("explain", one, "w").stdout
    assert "searched" in run("diff", one, other).stdout
    assert "No differences" in run("diff", one, one).stdout
    assert "no such file" in refused("diff", one, tmp_path / "gone.json")


def test_the_version_is_told() -> None:
    assert re.fullmatch(r"autopar \S+\n", run("--version").stdout)


def test_a_cluster_in_other_case_is_meant(file: Path) -> None:
    line = refused("report", f"{file}:task", "--cluster", "8xH100")
    assert "did you mean '8xh100'?" in line


def test_prices_are_told_when_asked(file: Path, tmp_path: Path) -> None:
    told = run("report", f"{file}:train_task", "--cluster", "8xh100").stdout
    assert "carried" in told
    assert "output['w'] -> w" in told
    assert "What the constraints cost" not in told
    assert (
        "carry output['w'] -> w"
        in run("report", f"{file}:train_task", "--cluster", "8xh100", "--prices").stdout
    )
    assert "is planned already" in refused("report", tmp_path / "plan.json", "--prices")


def test_what_following_costs_is_told(file: Path) -> None:
    told = run("report", f"{file}:follower_task").stdout
    assert "follow(train): 1 array" in told.partition("What the constraints cost")[2]


def test_a_memory_limit_that_nothing_fits_in(file: Path) -> None:
    line = refused(
        "report", f"{file}:task", "--cluster", "8xh100", "--mesh", "all=8", "--memory-limit", "1KiB"
    )
    assert line.startswith("NoFeasiblePlan: ")
    assert "1 KiB" in line


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--cluster", "no-such-cluster"), "UnknownCluster"),
        (("--cluster", "gone.toml"), "gone.toml"),
        (("--cluster", "8xh100", "--mesh", "all=6"), "InvalidMesh"),
        (("--cluster", "8xh100", "--mode", "fast"), "unknown mode 'fast'"),
        (("--mesh", "8"), "--mesh '8'"),
        (("--memory-limit", "much"), "--memory-limit 'much'"),
    ],
)
def test_wrong_options(file: Path, options: tuple[str, ...], expected: str) -> None:
    assert expected in refused("report", f"{file}:task", *options)


def test_a_function_that_cannot_be_traced(tmp_path: Path) -> None:
    path = tmp_path / "branching.py"
    path.write_text(
        "import jax\ndef f(x):\n  return 1 if x > 0 else 2\ndef task(): return f, (jax.numpy.ones(()),)\n"
    )
    assert "TraceError: JAX cannot trace f" in refused(
        "report", f"{path}:task", "--cluster", "8xh100"
    )


def test_wrong_plans(tmp_path: Path) -> None:
    assert "no such file" in refused("report", tmp_path / "gone.json")
    (tmp_path / "other.json").write_text("{}")
    assert "no plan file" in refused("report", tmp_path / "other.json")
    assert "is planned already" in refused("report", tmp_path / "other.json", "--cluster", "8xh100")
    assert "is planned already" in refused(
        "report", tmp_path / "other.json", "--save", tmp_path / "copy.json"
    )
    assert "is planned already" in refused(
        "report", tmp_path / "other.json", "--timeline", tmp_path / "copy.json"
    )


def test_clusters_are_listed() -> None:
    result = run("clusters")
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if "8x8xh100" in line)
    assert "h100" in row
    assert " 64 " in row
    assert "tpu-v5e-4x4" in result.stdout


def test_the_numbers_of_a_cluster_are_listed_with_how_they_were_obtained(tmp_path: Path) -> None:
    result = run("clusters", "dgx-h100-2x32x8")
    assert result.exit_code == 0
    for part in (
        "device.memory_bytes",
        "levels.pod.latency_s",
        "levels.server.bandwidth",
        "data sheet",
        "published",
    ):
        assert part in result.stdout
    assert "did you mean '8x8xh100'" in refused("clusters", "8x8xh10")
    (tmp_path / "mine.toml").write_text('name = "mine"\ndevise = "h100-sxm"\nlevels = []')
    said = refused("clusters", tmp_path / "mine.toml")
    assert "mine.toml: devise: " in said
    assert "did you mean 'device'?" in said


def test_the_demo_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "run", lambda console: console.print("the demo ran"))
    assert "the demo ran" in run("demo").stdout


def test_python_m_autopar() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "autopar", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("Usage: autopar ")
    assert all(command in result.stdout for command in ("report", "demo", "clusters"))


def test_a_time_limit_goes_to_the_solver(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(monkeypatch, fail(NoFeasiblePlan("no")))
    refused("report", f"{file}:task")
    refused("report", f"{file}:task", "--time-limit", "2.5")
    assert calls[0]["options"] == SearchOptions()
    assert calls[1]["options"].solve.time_limit_s == 2.5
    assert "is planned already" in refused("report", "plan.json", "--time-limit", "1")


def test_a_line_shows_how_far_the_search_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(
        cli, "Console", lambda **_: Console(file=shown, force_terminal=True, width=200)
    )
    assert run("report", f"{file}:task", "--cluster", "8xh100", "--mesh", "all=8").exit_code == 0
    assert f"planning {file}:task: " in shown.getvalue()
    assert re.search(r"mesh \S+: best \S+ s, at least \S+ s", shown.getvalue())
