"""Plans: what they say, saved and loaded, in two processes, in dumps, under memory limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar.api.plan_file import to_json
from autopar.core.sizes import exact_bytes
from autopar.errors import NoFeasiblePlan
from autopar.search.verify_plan import verify_plan
from tests.api.same import PARAMS, SLOW, W, X, arrays, assert_same, check, layer, step

ROOT = Path(__file__).resolve().parents[2]
MESH = {"a": 2, "b": 4}


def saved(plan: autopar.Plan, folder: Path) -> autopar.Plan:
    plan.save(folder / "plan.json")
    return autopar.Plan.load(folder / "plan.json")


def mlp(ws: Any, x: Any) -> Any:
    for w in ws:
        x = jnp.tanh(x @ w)
    return x.sum()


WEIGHTS = [np.full((64, 64), 0.01, np.float32)] * 3
ROWS = np.ones((8, 64), np.float32)


@pytest.mark.parametrize("mode", ["auto", "data_parallel"])
def test_shardings_are_for_plain_jit(mode: str) -> None:
    compiled = autopar.compile(step, cluster=SLOW, mesh=MESH, mode=mode)
    plan = compiled.plan(PARAMS, X)
    plain = jax.jit(step, in_shardings=plan.in_shardings(), out_shardings=plan.out_shardings())
    found, wanted = compiled(PARAMS, X), plain(PARAMS, X)
    assert_same(found, wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
    reversed_mesh = plan.jax_mesh(jax.devices()[::-1])
    assert plan.in_shardings(reversed_mesh)[0]["w"].mesh == reversed_mesh


def test_a_plan_answers_questions() -> None:
    auto = autopar.plan(step, PARAMS, X, cluster=SLOW, mesh=MESH)
    other = autopar.plan(step, PARAMS, X, cluster=SLOW, mesh=MESH, mode="data_parallel")
    assert auto.lower_bound_s <= auto.objective_s <= other.objective_s
    assert auto.step_time_s == pytest.approx(auto.compute_time_s + auto.communication_time_s)
    assert 0 <= auto.gap < 1
    assert len(auto.collectives) == len(auto.program().collectives)
    assert len(auto.strategies) == len(auto.bound.traced.graph.ops)
    assert "p['w']" in auto.report()
    assert auto.report() == str(auto)
    assert str(auto.placements["p['w']"]) in auto.explain("p['w']")
    assert "data_parallel" in auto.diff(other)
    with pytest.raises(
        autopar.AutoparError, match=r"no input, output or source line called \"p\['v'\]\".*p\['w'\]"
    ):
        auto.explain("p['v']")


def assert_verified(plan: autopar.Plan) -> None:
    """Its bound is proven anew."""
    found = plan.verify()
    assert plan.lower_bound_s * (1 - 1e-9) <= found.bound_s <= plan.objective_s
    assert f"no plan on mesh {plan.mesh}" in str(found)
    assert found.stated_by == ()
    assert str(found).startswith("bound re-checked")


def test_the_bound_of_a_plan_is_verified() -> None:
    assert_verified(autopar.plan(step, PARAMS, X, cluster=SLOW))
    assert_verified(autopar.plan(step, PARAMS, X, cluster=SLOW, mesh=MESH, mode="data_parallel"))


def test_what_is_proven_without_the_limit_is_proven_within_it() -> None:
    """The witness of a plan within a limit may prove less, and what nothing at hand proves is said to be so."""
    free = autopar.plan(step, PARAMS, X, cluster=SLOW, mesh=MESH)
    plan = autopar.plan(
        step, PARAMS, X, cluster=SLOW, mesh=MESH, memory_limit_bytes=2 * free.peak_memory_bytes
    )
    planned = replace(plan.bound.planned, unlimited=free.bound.planned)
    assert planned.solution is not None
    idle = replace(planned, solution=replace(planned.solution, lower_bound=0.0, witness=()))
    alone, beside = (
        verify_plan(each, free.lower_bound_s, 0.0) for each in (replace(idle, unlimited=None), idle)
    )
    assert alone is not None
    assert beside is not None
    assert alone.bound_s < beside.bound_s == pytest.approx(free.lower_bound_s, rel=1e-9)
    assert "was proven of another Problem" in str(alone)
    assert "was proven of another Problem" not in str(beside)


def test_planning_for_devices_that_are_not_there() -> None:
    def spec(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    params = {"w": spec(1024, 4096), "b": spec(4096)}
    plan = autopar.plan(step, params, spec(8192, 1024), cluster="8x8xh100")
    assert plan.mesh.size == 64
    assert plan.lower_bound_s <= plan.objective_s
    message = "the plan is for mesh .* of 64 devices, 8 are present"
    with pytest.raises(autopar.AutoparError, match=message):
        plan.compile()
    with pytest.raises(autopar.AutoparError, match=message):
        plan.in_shardings()
    compiled = autopar.compile(layer, cluster="8x8xh100")
    with pytest.raises(autopar.AutoparError, match=message):
        compiled(W, X)
    assert compiled.plan(W, X).mesh.size == 64


# Files ----------------------------------------------------------------------------------------------------------------


def test_a_loaded_plan_runs_as_the_one_that_was_saved(tmp_path: Path) -> None:
    plan = autopar.plan(step, PARAMS, X, cluster=SLOW)
    loaded = saved(plan, tmp_path)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()
    assert loaded.report() == plan.report(compare=False)
    compiled = loaded.compile(step)
    check(compiled, step, PARAMS, X)
    bound = compiled.plan(PARAMS, X)
    assert str(bound.program()) == str(plan.program())
    assert bound.in_shardings() == plan.in_shardings()
    check(plan.compile(), step, PARAMS, X)
    state, _ = check(loaded.compile(step, devices=jax.devices()[::-1]), step, PARAMS, X)
    assert list(state["w"].sharding.mesh.devices.flat) == jax.devices()[::-1]


def test_a_file_keeps_the_tolerance_of_its_search(tmp_path: Path) -> None:
    """Of which files of older versions say nothing: they are read, and run."""
    plan = autopar.plan(
        layer, W, X, cluster=SLOW, options=autopar.SearchOptions(gap_tolerance=0.25)
    )
    loaded = saved(plan, tmp_path)
    assert loaded.gap_tolerance == plan.gap_tolerance == 0.25
    assert loaded.compile(layer).plan(W, X).gap_tolerance == 0.25

    older = json.loads(to_json(plan.file))
    del older["signature"]["gap_tolerance"]
    (tmp_path / "older.json").write_text(json.dumps(older))
    old = autopar.Plan.load(tmp_path / "older.json")
    assert old.gap_tolerance is None
    assert_same(old.compile(layer)(W, X), layer(W, X))


def test_a_loaded_plan_is_called_as_it_was_planned(tmp_path: Path) -> None:
    def fn(n: int, state: Any, x: Any) -> Any:
        return (state * n + x.max(), state + n)

    plan = autopar.plan(
        fn,
        3,
        W,
        X,
        cluster=SLOW,
        static_argnums=(0,),
        donate_argnums=(1,),
        carry=[(0, 1)],
        mesh={"a": 8},
    )
    compiled = saved(plan, tmp_path).compile(fn)
    state = jnp.array(W)
    found = compiled(3, state, X)
    assert_same(found, jax.jit(fn, static_argnums=0)(3, W, X))
    assert state.is_deleted()
    assert found[0].sharding == compiled.plan(3, W, X).in_shardings()[0]
    with pytest.raises(autopar.AutoparError, match="another function than fn"):
        compiled(4, jnp.array(W), X)


def test_constants_and_keys_survive_a_file(tmp_path: Path) -> None:
    table = np.arange(16, dtype=np.float32)

    def fn(key: Any, x: Any) -> Any:
        return x + table + jax.random.normal(key, x.shape), jax.random.split(key)[0]

    key = jax.random.key(3)
    compiled = saved(autopar.plan(fn, key, X, cluster=SLOW), tmp_path).compile(fn)
    check(compiled, fn, key, X)


def other(p: Any, x: Any) -> Any:
    return step(p, x * 2)


REFUSED = [
    (step, ({**PARAMS, "w": W[:, :8]}, X), r"for p\['w'\]: float32\[16, 24\], given is .* float32\[16, 8\]"),
    (step, (PARAMS, X[:4]), r"the plan is for x: float32\[8, 16\], given is x: float32\[4, 16\]"),
    (step, (PARAMS, X[:, :3]), r"given is x: float32\[8, 3\]. Pass what was planned, or plan again"),
    (step, (PARAMS, X.astype(np.int32)), r"given is x: int32\[8, 16\]"),
    (step, ({"w": W}, X), r"the plan is for p\['b'\]: float32\[24\], given is p\['w'\]"),
    (step, (PARAMS, X, X), r"for 3 input arrays \(.*, x\), given are 4 \(.*, x, args\[0\]\)"),
    (step, (), r"for 3 input arrays \(p\['b'\], p\['w'\], x\), given are 0"),
    (step, (PARAMS, "text"), "argument x is a str, not an array or a number"),
    (other, (PARAMS, X), "the plan was made for another function than other: .* Plan it again"),
]  # fmt: skip


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("fn", "args", "message"), REFUSED)
def test_a_loaded_plan_refuses_other_arguments_and_functions(
    fn: Any, args: Any, message: str, tmp_path: Path
) -> None:
    loaded = saved(autopar.plan(step, PARAMS, X, cluster=SLOW), tmp_path)
    compiled = loaded.compile(fn)
    with pytest.raises(autopar.AutoparError, match=message):
        compiled(*args)
    if fn is step:
        check(compiled, step, PARAMS, X)


def test_a_loaded_plan_knows_no_function(tmp_path: Path) -> None:
    loaded = saved(autopar.plan(step, PARAMS, X, cluster=SLOW), tmp_path)
    for use in (
        loaded.compile,
        loaded.program,
        loaded.in_shardings,
        loaded.out_shardings,
        loaded.verify,
    ):
        with pytest.raises(
            autopar.AutoparError, match=r"a loaded plan knows no function: .*compile\(fn\)"
        ):
            use()
    with pytest.raises(autopar.AutoparError, match="of 8 devices, 4 are given"):
        loaded.compile(step, devices=jax.devices()[:4])


def test_corrupt_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = autopar.plan(layer, W, X, cluster=SLOW)
    plan.save(path)
    content = to_json(plan.file)
    for text, message in (
        (path.read_text()[:-100], "is not JSON"),
        (content[:-100], "is not JSON"),
        ("{}", "is JSON but no plan file"),
        (content.replace('"objective_s"', '"objective"'), "is a damaged plan file"),
    ):
        path.write_text(text)
        with pytest.raises(autopar.AutoparError, match=message):
            autopar.Plan.load(path)


def test_a_file_with_a_strategy_that_does_not_exist(tmp_path: Path) -> None:
    """A damaged file that says nothing impossible by itself: two dims of an operator's result are swapped."""
    path = tmp_path / "plan.json"
    document = json.loads(to_json(autopar.plan(layer, W, X, cluster=SLOW, mesh=MESH).file))
    table = document["plan"]["stages"][0]
    strategy = table["strategies"][table["operators"][0]]
    placement = table["placements"][strategy["outs"][0]]
    table["placements"].append({**placement, "dims": placement["dims"][::-1]})
    strategy["outs"] = [len(table["placements"]) - 1]
    path.write_text(json.dumps(document))
    with pytest.raises(
        autopar.AutoparError, match=r"the plan runs 'dot_general' .* which is no strategy of it"
    ):
        autopar.Plan.load(path).compile(layer)(W, X)


SCRIPT = """
import jax, sys
jax.config.update("jax_num_cpu_devices", 8)
from tests.api.test_plan import save_plan
save_plan(sys.argv[1])
"""


def save_plan(path: Any) -> None:
    limited = autopar.plan(step, PARAMS, X, cluster=SLOW, memory_limit_bytes=2000, donate_argnums=0)
    limited.save(path)


def test_two_processes_make_the_same_file(tmp_path: Path) -> None:
    """This one, which has planned before and draws its hashes by chance, and a fresh one of other hashes."""
    mine, theirs = tmp_path / "mine.json", tmp_path / "theirs.json"
    save_plan(mine)
    subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(theirs)],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)},
        check=True,
        cwd=ROOT,
    )
    assert mine.read_bytes() == theirs.read_bytes()


def test_a_dump_holds_every_stage(tmp_path: Path) -> None:
    plan = autopar.plan(step, PARAMS, X, cluster=SLOW, dump=tmp_path / "deep" / "dump")
    files = sorted((tmp_path / "deep" / "dump").iterdir())
    passes = [
        "insert_redistribution",
        "price_exchanges",
        "sink_all_reduce",
        "mark_mirror",
        "fuse_collectives",
        "bucket_rounds",
        "raise_scalings",
    ]
    stages = ["graph", "plan", "lower", *passes]
    assert [file.name for file in files] == [
        f"{n:02d}_{stage}.txt" for n, stage in enumerate(stages)
    ]
    texts = {stage: file.read_text() for stage, file in zip(stages, files, strict=True)}
    assert "input p['w']" in texts["graph"]
    assert str(plan.placements["p['w']"]) in texts["plan"]
    assert " = convert " in texts["lower"]
    assert " = convert " not in texts["insert_redistribution"]
    assert texts["raise_scalings"] == f"{plan.program()}\n"
    (tmp_path / "file").write_text("")
    with pytest.raises(
        autopar.AutoparError, match=r"cannot be written to .*file.* Choose another directory"
    ):
        autopar.plan(step, PARAMS, X, cluster=SLOW, dump=tmp_path / "file")


# Memory ---------------------------------------------------------------------------------------------------------------


def test_a_smaller_limit_gives_a_smaller_and_slower_plan() -> None:
    unlimited = autopar.plan(mlp, WEIGHTS, ROWS, cluster="cpu8", mesh={"x": 8})
    assert str(unlimited.placements["ws[0]"]) == "[-, -]"
    last = unlimited
    for part in (2, 4, 5):
        limit = unlimited.peak_memory_bytes // part
        plan = autopar.plan(
            mlp, WEIGHTS, ROWS, cluster="cpu8", mesh={"x": 8}, memory_limit_bytes=limit
        )
        assert plan.peak_memory_bytes <= limit
        assert plan.lower_bound_s <= plan.objective_s
        assert plan.objective_s >= last.objective_s
        assert plan.summary.memory_limit_bytes == limit
        assert_verified(plan)
        last = plan
    check(last.compile(), mlp, WEIGHTS, ROWS)


def test_what_the_error_names_as_the_smallest_peak_can_be_had() -> None:
    def planned(limit: float) -> autopar.Plan:
        return autopar.plan(
            mlp, WEIGHTS[:1], ROWS, cluster="cpu8", mesh={"x": 8}, memory_limit_bytes=limit
        )

    peaks: set[int] = set()
    for limit in (1, 1000, 2000.0):
        message = "mesh x=8 fits in the memory limit of .* a device: the smallest peak found is"
        with pytest.raises(NoFeasiblePlan, match=message) as error:
            planned(limit)
        assert error.value.min_peak_bytes is not None
        told, peak = str(error.value), f"{error.value.min_peak_bytes:,}"
        least = exact_bytes(error.value.min_peak_bytes)
        assert f"limit of {exact_bytes(int(limit))} a device" in told
        assert f"the smallest peak found is {least}, and any plan needs " in told
        assert "No constraint is to blame, but the memory limit at " in told
        assert "most of all what dot_general reads and makes (4.25 KiB)" in told
        assert (
            f"Raise memory_limit_bytes (to {peak} or more), use more devices, or donate the state."
            in told
        )
        peaks.add(error.value.min_peak_bytes)
    (smallest,) = peaks
    assert planned(smallest).peak_memory_bytes == smallest


def test_donating_the_state_saves_its_memory() -> None:
    peaks = [
        autopar.plan(
            step, arrays(PARAMS), X, cluster="cpu8", mesh=MESH, donate_argnums=donated
        ).peak_memory_bytes
        for donated in ((), 0, "carried")
    ]
    assert peaks[2] == peaks[1] < peaks[0]


def test_what_is_carried_is_gone_after_a_call_and_the_rest_is_not(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cluster": SLOW, "mesh": MESH, "donate_argnums": "carried"}
    compiled = saved(autopar.plan(step, PARAMS, X, **options), tmp_path).compile(step)
    state = arrays(PARAMS)
    rows = jnp.asarray(X)
    found = compiled(state, rows)
    assert_same(found, jax.jit(step)(PARAMS, X))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not rows.is_deleted()
    (donated, not_donated), _ = compiled.lower(PARAMS, X).args_info
    assert all(leaf.donated for leaf in jax.tree.leaves(donated))
    assert not not_donated.donated


def test_of_a_state_that_is_carried_in_part_the_rest_stays() -> None:
    def fn(state: Any, x: Any) -> Any:
        return {"w": state["w"] + x.T @ jnp.tanh(x @ state["w"] + state["b"])}

    compiled = autopar.compile(fn, cluster=SLOW, mesh=MESH, donate_argnums="carried")
    state = arrays(PARAMS)
    assert_same(compiled(state, X), jax.jit(fn)(PARAMS, X))
    assert [state[name].is_deleted() for name in "wb"] == [True, False]
    given, _ = compiled.lower(PARAMS, X).args_info
    assert not any(leaf.donated for leaf in jax.tree.leaves(given))
