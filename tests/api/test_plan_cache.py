"""Plans are kept: a second start traces, and does not search."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.api import make
from autopar.api.packed_plan import packed_text, unpacked_text
from autopar.cost.pricing import Roofline
from autopar.errors import InvalidOption, PlanCacheWarning
from tests.api.same import PARAMS, SLOW, X, assert_same, step
from tests.recompute.steps import arrays as recomputed_arrays
from tests.recompute.steps import scanned, specs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every search."""
    made: list[int] = []
    real = make.search_best

    def counting(*args: Any) -> Any:
        made.append(1)
        return real(*args)

    monkeypatch.setattr(make, "search_best", counting)
    return made


def kept(cache: Path) -> list[Path]:
    return sorted(cache.iterdir()) if cache.exists() else []


def test_a_second_start_does_not_search(searches: list[int], tmp_path: Path) -> None:
    wanted = jax.jit(step)(PARAMS, X)
    texts: list[str] = []
    for _ in range(3):
        compiled = autopar.compile(step, cluster=SLOW, cache=tmp_path)
        assert_same(compiled(PARAMS, X), wanted)
        plan = compiled.plan(PARAMS, X)
        texts.append(plan.report() + compiled.lower(PARAMS, X).as_text())
        assert len(searches) == len(kept(tmp_path)) == 1
        assert plan.objective_s >= plan.lower_bound_s > 0
    assert texts[0] == texts[1] == texts[2]
    assert (
        autopar.plan(step, PARAMS, X, cluster=SLOW, cache=str(tmp_path)).report() == plan.report()
    )
    assert len(searches) == 1


def test_a_kept_plan_is_one_like_any_other(tmp_path: Path) -> None:
    base: Any = {"cluster": SLOW, "mesh": {"a": 2, "b": 4}}
    fresh, _, plan = (
        autopar.plan(step, PARAMS, X, cache=cache, **base) for cache in (False, tmp_path, tmp_path)
    )
    held = (autopar.replicate("p['w']"),)
    assert plan.resolve(constraints=held).objective_s == fresh.resolve(constraints=held).objective_s
    assert plan.carry_price() == fresh.carry_price()
    assert plan.summary == fresh.summary
    plan.save(tmp_path / "saved.json")
    assert autopar.Plan.load(tmp_path / "saved.json").report() == fresh.report(compare=False)
    with pytest.raises(
        autopar.AutoparError,
        match=r"holds no proof of its bound, as it was loaded or kept in a cache",
    ):
        plan.verify()


def test_the_environment_names_a_cache(
    searches: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path / "new" / "one"))
    for _ in range(2):
        autopar.plan(step, PARAMS, X, cluster=SLOW)
    assert len(searches) == len(kept(tmp_path / "new" / "one")) == 1
    autopar.plan(step, PARAMS, X, cluster=SLOW, cache=False)
    autopar.plan(
        step, PARAMS, X, cluster=SLOW, pricing=lambda graph, mesh: Roofline(graph, mesh, SLOW)
    )
    assert len(searches) == 3
    autopar.plan(step, PARAMS, X, cluster=SLOW, cache=tmp_path / "other")
    assert len(searches) == 4
    assert len(kept(tmp_path / "new" / "one")) == 1


def other(p: Any, x: Any) -> Any:
    new, loss = step(p, x)
    return new, loss * 2


def moved(p: Any, x: Any) -> Any:
    # The same as step, on other lines.
    loss, gradient = jax.value_and_grad(lambda p: (jnp.tanh(x @ p["w"] + p["b"]) ** 2).mean())(p)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradient), loss


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(
    ("fn", "args", "options"),
    [
        (other, (PARAMS, X), {}),
        (step, (PARAMS, X[:4]), {}),
        (step, (PARAMS, X), {"cluster": "8xh100"}),
        (step, (PARAMS, X), {"mesh": {"a": 8}}),
        (step, (PARAMS, X), {"mesh": {"b": 2, "a": 4}}),
        (step, (PARAMS, X), {"mode": "data_parallel"}),
        (step, (PARAMS, X), {"memory_limit_bytes": "1GiB"}),
        (step, (PARAMS, X), {"donate_argnums": 0}),
        (step, (PARAMS, X), {"carry": None}),
        (step, (PARAMS, X), {"strict": True}),
        (step, (PARAMS, X), {"options": autopar.SearchOptions(recompute="never")}),
        (step, (PARAMS, X), {"options": autopar.SearchOptions(gap_tolerance=0.0)}),
        (step, (PARAMS, X), {"constraints": (autopar.forbid("p['w']", P(("a", "b"))),)}),
        (lambda params, x: step(params, x), (PARAMS, X), {}),
    ],
)
def test_what_a_plan_depends_on_is_looked_at(
    fn: Any, args: Any, options: dict[str, Any], searches: list[int], tmp_path: Path
) -> None:
    base: Any = {"cluster": SLOW, "mesh": {"a": 2, "b": 4}, "cache": tmp_path}
    autopar.plan(step, PARAMS, X, **base)
    for _ in range(2):
        autopar.plan(fn, *args, **{**base, **options})
        assert len(searches) == len(kept(tmp_path)) == 2


def test_what_makes_no_difference_is_not_looked_at(searches: list[int], tmp_path: Path) -> None:
    base: Any = {"cluster": SLOW, "cache": tmp_path}
    autopar.plan(step, PARAMS, X, **base)
    autopar.plan(moved, PARAMS, X, **base)
    autopar.plan(step, jax.eval_shape(lambda: PARAMS), X + 1, **base)
    autopar.plan(step, PARAMS, X, options=autopar.SearchOptions(on_progress=print), **base)
    assert len(searches) == len(kept(tmp_path)) == 1


def test_lines_count_where_constraints_name_lines(searches: list[int], tmp_path: Path) -> None:
    at = (autopar.forbid(autopar.at("same.py", kind="dot_general"), "nowhere"),)
    base: Any = {"cluster": SLOW, "mesh": {"nowhere": 8}, "cache": tmp_path, "constraints": at}
    autopar.plan(step, PARAMS, X, **base)
    with pytest.raises(autopar.AutoparError, match="is no input, output or operator"):
        autopar.plan(moved, PARAMS, X, **base)


def test_versions_count(
    searches: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    autopar.plan(step, PARAMS, X, cluster=SLOW, cache=tmp_path)
    monkeypatch.setattr("autopar.api.plan_cache.autopar_version", lambda: "9.9")
    autopar.plan(step, PARAMS, X, cluster=SLOW, cache=tmp_path)
    assert len(searches) == len(kept(tmp_path)) == 2


def test_a_plan_of_data_parallelism_is_kept_as_such(searches: list[int], tmp_path: Path) -> None:
    options = autopar.SearchOptions(overlap="compared")
    reports = [
        autopar.plan(
            step, PARAMS, X, cluster=SLOW, mesh={"a": 8}, options=options, cache=tmp_path
        ).report()
        for _ in range(2)
    ]
    assert reports[0] == reports[1]
    assert len(searches) == 1


@pytest.mark.slow
def test_plans_that_recompute_are_kept(searches: list[int], tmp_path: Path) -> None:
    shapes = specs(scanned, recomputed_arrays(128, 4, 8192))[1]
    setting: Any = {"cluster": "8xh100", "mesh": {"x": 8}, "cache": tmp_path}
    limit = int(0.6 * autopar.plan(scanned, *shapes, **setting).peak_memory_bytes)
    first, second = (
        autopar.plan(scanned, *shapes, **setting, memory_limit_bytes=limit) for _ in range(2)
    )
    assert first.record.recomputed == second.record.recomputed != ()
    assert first.report() == second.report()
    assert len(searches) == 2


DAMAGE = {
    "empty": lambda text: "",
    "cut": lambda text: text[: len(text) // 2],
    "other": lambda text: json.dumps({"contents": 3}),
    "no text": lambda text: json.dumps({"contents": json.loads(text)["contents"][:-8]}),
    "list": lambda text: "[1]",
}


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_said_and_planned_anew(
    damage: str, searches: list[int], tmp_path: Path
) -> None:
    made = autopar.plan(step, PARAMS, X, cluster=SLOW, cache=tmp_path)
    (path,) = kept(tmp_path)
    path.write_text(DAMAGE[damage](path.read_text()))
    with pytest.warns(
        PlanCacheWarning, match=r"cannot be used: .*It is planned anew, and kept in its place"
    ) as told:
        again = autopar.plan(step, PARAMS, X, cluster=SLOW, cache=tmp_path)
    assert str(path) in str(told[0].message)
    assert told[0].filename == __file__
    assert again.report() == made.report()
    autopar.plan(step, PARAMS, X, cluster=SLOW, cache=tmp_path)
    assert len(searches) == 2


def test_what_was_kept_for_something_else_is_planned_anew(
    searches: list[int], tmp_path: Path
) -> None:
    base: Any = {"cluster": SLOW, "cache": tmp_path}
    autopar.plan(step, PARAMS, X, mesh={"a": 2, "b": 4}, **base)
    (first,) = kept(tmp_path)
    wanted = first.read_text()
    autopar.plan(step, PARAMS, X, mesh={"a": 4, "b": 2}, **base)
    (second,) = [path for path in kept(tmp_path) if path != first]
    first.write_text(second.read_text())
    with pytest.warns(PlanCacheWarning, match="cannot be used: it was made for something else"):
        plan = autopar.plan(step, PARAMS, X, mesh={"a": 2, "b": 4}, **base)
    assert plan.mesh.axes == (("a", 2), ("b", 4))
    assert first.read_text() == wanted
    assert len(searches) == 3


def test_a_strategy_that_no_rule_gives_is_planned_anew(searches: list[int], tmp_path: Path) -> None:
    """As after a change of a rule of the user's own: the dims of a product's result are swapped."""
    made = autopar.plan(step, PARAMS, X, cluster=SLOW, cache=tmp_path)
    (path,) = kept(tmp_path)
    document = json.loads(path.read_text())
    entry = json.loads(unpacked_text(document["contents"]))
    table = entry["plan"]["stages"][0]
    placement = next(
        p for p in table["placements"] if len(p["dims"]) == 2 and p["dims"][0] != p["dims"][1]
    )
    placement["dims"].reverse()
    path.write_text(json.dumps({**document, "contents": packed_text(json.dumps(entry))}))
    with pytest.warns(
        PlanCacheWarning, match="cannot be used: the plan runs .* which is no strategy of it"
    ):
        again = autopar.plan(step, PARAMS, X, cluster=SLOW, cache=tmp_path)
    assert again.report() == made.report()
    assert len(searches) == 2


def test_a_cache_that_cannot_be_written_loses_no_plan(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOption, match="which is no directory: name one"):
        autopar.compile(step, cluster=SLOW, cache=tmp_path / "file")
    with pytest.warns(
        PlanCacheWarning, match="the plan of step cannot be kept in .*Not a directory"
    ):
        plan = autopar.plan(step, PARAMS, X, cluster=SLOW, cache=tmp_path / "file" / "below")
    assert plan.step_time_s > 0


@pytest.mark.parametrize("given", [3, True, "", b"cache"])
def test_what_is_no_directory_is_refused(given: Any) -> None:
    with pytest.raises(InvalidOption, match=r"cache is .*: pass a directory, False for none"):
        autopar.compile(step, cache=given)
    with pytest.raises(InvalidOption, match="cannot be kept, as it has no name"):
        autopar.compile(
            step, cache="plans", pricing=lambda graph, mesh: Roofline(graph, mesh, SLOW)
        )


def test_arrays_called_cache_are_arguments() -> None:
    def decode(x: Any, *, cache: Any) -> Any:
        return x @ cache

    w = np.ones((16, 8), np.float32)
    assert "cache" in autopar.plan(decode, X, cluster=SLOW, cache=w).placements
    assert len(autopar.front(decode, X, cluster=SLOW, mesh={"a": 8}, points=2, cache=w)) >= 1
    with pytest.raises(
        InvalidOption, match=r"cache is an option of autopar\.compile and plan only"
    ):
        autopar.front(decode, X, cluster=SLOW, cache="plans")


def test_many_writers_leave_one_whole_file(tmp_path: Path) -> None:
    """Readers, too, never meet a part of one: under the same key all write the same."""
    plan = autopar.plan(step, PARAMS, X, cluster=SLOW, cache=tmp_path)
    (path,) = kept(tmp_path)
    shelf = make.Shelf(path)
    text = path.read_text()

    def work(_: int) -> Any:
        shelf.write(plan.bound.record, "auto", "step")
        return shelf.read()

    with warnings.catch_warnings(), ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("error")
        found = list(pool.map(work, range(200)))
    assert all(entry.plan == plan.bound.record for entry in found)
    assert kept(tmp_path) == [path]
    assert path.read_text() == text


SCRIPT = """
import sys, jax
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_compilation_cache_dir", sys.argv[2])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
import autopar
from autopar.api import make
from tests.api.same import PARAMS, X, step
if sys.argv[3] == "again":
    make.search_best = None
state, loss = autopar.compile(step, cache=sys.argv[1], mesh={"a": 2, "b": 4}, donate_argnums=0)(PARAMS, X)
print(float(loss))
"""


@pytest.mark.slow
def test_both_caches_serve_a_second_process(tmp_path: Path) -> None:
    plans, programs = tmp_path / "plans", tmp_path / "programs"
    losses: list[str] = []
    entries: list[set[str]] = []
    for start in ("first", "again"):
        command = [sys.executable, "-c", SCRIPT, str(plans), str(programs), start]
        losses.append(
            subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        )
        entries.append(
            {path.name for path in programs.iterdir() if not path.name.endswith("atime")}
        )
    assert losses[0] == losses[1]
    assert len(kept(plans)) == 1
    assert entries[0] == entries[1]
    assert any("run" in name for name in entries[0])
    assert os.environ.get("AUTOPAR_CACHE") is None
