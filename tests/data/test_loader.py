"""Loaders in one process: what batches are, what is refused, and where one goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.data import Loader, Reading, Rows, Waits, loader
from autopar.data.arguments import Arguments
from autopar.data.tuning import FIRST
from autopar.errors import (
    DataError,
    InvalidMesh,
    InvalidOption,
    MissingExtra,
    SignatureMismatch,
)

ROWS, BATCH = 20, 8
AT_ONCE = Reading(0, 0, 0)
S = jax.ShapeDtypeStruct


def step(w: Any, batch: Any, labels: Any) -> Any:
    return jnp.sum(batch["x"] @ w) + jnp.sum(labels * batch["extra"][0])


ARGUMENTS = (
    S((4, 2), jnp.float32),
    {"x": S((BATCH, 4), jnp.float32), "extra": (S((BATCH,), jnp.int32),)},
    S((BATCH,), jnp.bfloat16),
)


@pytest.fixture(scope="module")
def plan() -> autopar.Plan:
    pins = (autopar.pin("batch['x']", P("a")), autopar.pin("labels", P("a")))
    return autopar.plan(step, *ARGUMENTS, cluster="cpu8", mesh={"a": 8}, constraints=pins)


def rows(count: int = ROWS) -> Rows:
    numbers = np.arange(count)
    x = np.broadcast_to(numbers[:, None], (count, 4)).astype(np.float64)
    return Rows({"batch": {"x": x, "extra": (numbers,)}, "labels": x[:, 0].astype(jnp.bfloat16)})


def given_out(batches: Iterator[Any], count: int | None = None) -> list[list[int]]:
    """The rows of batches; of each leaf the same."""
    found: list[list[int]] = []
    for batch, labels in batches:
        number = np.asarray(batch["extra"][0]).tolist()
        assert np.asarray(batch["x"])[:, 3].tolist() == number
        assert np.asarray(labels).tolist() == number
        found.append(number)
        if len(found) == count:
            break
    return found


def made(plan: autopar.Plan, source: Any = None, **options: Any) -> Loader:
    source = rows() if source is None else source
    return loader(source, plan, "batch", "labels", **{"reading": AT_ONCE, "depth": 0, **options})


def test_batches_are_arguments_in_the_placements_of_the_plan(plan: autopar.Plan) -> None:
    batch, labels = next(made(plan))
    _, shardings, of_labels = plan.in_shardings()
    assert jax.tree.map(lambda leaf: leaf.sharding, batch) == shardings
    assert labels.sharding == of_labels
    types = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (batch, labels))
    assert types == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), ARGUMENTS[1:])
    assert float(plan.compile()(jnp.ones((4, 2)), batch, labels)) == 8 * 28 + sum(
        n * n for n in range(8)
    )


def test_the_end_of_the_source_wraps_round_or_is_dropped(plan: autopar.Plan) -> None:
    wrapped = made(plan, epochs=2)
    assert wrapped.batches_left == 5
    assert given_out(wrapped)[2] == [16, 17, 18, 19, 0, 1, 2, 3]
    assert wrapped.batches_left == 0
    assert wrapped.epoch == 2
    dropped = made(plan, epochs=2, at_end="drop")
    assert given_out(dropped) == [[*range(8)], [*range(8, 16)]] * 2
    assert given_out(dropped) == []
    endless = made(plan)
    assert endless.batches_left is None
    assert len(given_out(endless, 30)) == 30


def test_each_epoch_has_every_row_in_an_order_of_its_own(plan: autopar.Plan) -> None:
    batches = np.reshape(given_out(made(plan, epochs=2, shuffle=True, seed=5)), (2, ROWS))
    assert [sorted(epoch) for epoch in batches.tolist()] == [[*range(ROWS)]] * 2
    assert batches[0].tolist() != batches[1].tolist()
    assert batches[0].tolist() != [*range(ROWS)]
    again = given_out(made(plan, epochs=2, shuffle=True, seed=5))
    assert np.reshape(again, (2, ROWS)).tolist() == batches.tolist()
    other = given_out(made(plan, epochs=2, shuffle=True, seed=6))
    assert np.reshape(other, (2, ROWS)).tolist() != batches.tolist()


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("reading", [AT_ONCE, Reading(0, 1, 1), Reading(0, 3, 4)])
@pytest.mark.parametrize("depth", [0, 2])
def test_batches_are_the_same_however_they_are_made(
    plan: autopar.Plan, reading: Reading, depth: int
) -> None:
    expected = given_out(made(plan, epochs=3, shuffle=True))
    with made(plan, epochs=3, shuffle=True, reading=reading, depth=depth) as given:
        assert given_out(given) == expected


@pytest.mark.slow
def test_batches_that_processes_make_are_the_same(plan: autopar.Plan) -> None:
    expected = given_out(made(plan, epochs=3, shuffle=True))
    with made(plan, epochs=3, shuffle=True, reading=Reading(2, 0, 1)) as given:
        assert given_out(given, 3) == expected[:3]
        given.set_state({**given.get_state(), "position": 0})
        assert given_out(given) == expected


@pytest.mark.slow
def test_batches_are_the_same_while_readings_are_tried(
    plan: autopar.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock by which half of every step is waiting, whatever is tried."""
    expected = given_out(made(plan, epochs=20, shuffle=True))
    monkeypatch.setitem(sys.modules, "__main__", script("/nowhere.py"))  # no processes
    clock = count()
    monkeypatch.setattr("autopar.data.load.perf_counter", lambda: next(clock))
    readings: list[Reading] = []

    def told(batches: Loader) -> Iterator[Any]:
        for batch in batches:
            readings.append(batches.reading)
            yield batch

    with made(plan, epochs=20, shuffle=True, reading=None, depth=1) as given:
        assert given_out(told(given)) == expected
        assert given.is_tuned
    assert [*dict.fromkeys(readings)] == [FIRST, Reading(0, 3, 3), Reading(0, 1, 8)]
    assert readings[-1] == FIRST  # nothing helped


def script(path: str) -> ModuleType:
    """What runs, as a module."""
    made = ModuleType("__main__")
    made.__file__ = path
    return made


LEFT_OPEN = """
import jax, numpy as np
if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    import autopar
    plan = autopar.plan(lambda x: x.sum(), jax.ShapeDtypeStruct((8,), np.float32), cluster="cpu8")
    reading = autopar.data.Reading(workers=1, threads=1)
    batches = autopar.data.loader(np.arange(64, dtype=np.float32), plan, "x", reading=reading)
    print(next(batches)[0].sum())
"""


@pytest.mark.slow
def test_a_loader_that_is_left_open_ends_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEFT_OPEN)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(tmp_path / "train.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "28.0\n", "")


def test_a_loader_goes_on_where_another_stopped(plan: autopar.Plan) -> None:
    whole = given_out(made(plan, epochs=3, shuffle=True))
    with made(plan, epochs=3, shuffle=True, reading=Reading(0, 2, 4), depth=3) as given:
        before = given_out(given, 3)
        state = json.loads(json.dumps(given.get_state()))
        assert state["position"] == 3 * BATCH  # of what was given out, not of what is made ahead
        rest = given_out(given)
        given.set_state(state)
        assert given_out(given) == rest
    other = made(plan, epochs=3, shuffle=True)
    other.set_state(state)
    assert [*before, *given_out(other)] == whole


def test_a_position_of_other_data_is_refused(plan: autopar.Plan) -> None:
    given = made(plan, shuffle=True)
    next(given)
    for change, message in (
        ({"rows": 21}, "rows 21, here 20"),
        ({"seed": 1}, "seed 1, here 0"),
        ({"shuffle": False}, "shuffle False, here True"),
        ({"position": -8}, "is no state of a loader"),
        ({"step": 3}, "is no state of a loader"),
    ):
        with pytest.raises(DataError, match=message):
            given.set_state({**given.get_state(), **change})
    assert given.get_state()["position"] == BATCH


def test_maps_are_those_of_grain(plan: autopar.Plan) -> None:
    """Random ones by the position in the stream: the same on any number of processes, others in each epoch."""

    class Noise(grain.transforms.RandomMap):
        def random_map(self, element: Any, rng: np.random.Generator) -> Any:
            return {**element, "labels": rng.integers(100).astype(jnp.bfloat16)}

    class Numbered(grain.transforms.MapWithIndex):
        def map_with_index(self, index: int, element: Any) -> Any:
            return {**element, "batch": {**element["batch"], "extra": (np.int32(index),)}}

    def doubled(element: Any) -> Any:
        return {**element, "batch": {**element["batch"], "x": 2 * element["batch"]["x"]}}

    source: Any = rows()
    batches = [*made(plan, source, transforms=(Noise(), Numbered(), doubled), epochs=2)]
    noise = np.concatenate([labels for _, labels in batches])
    assert noise[:ROWS].tolist() != noise[ROWS:].tolist()
    assert np.concatenate([b["extra"][0] for b, _ in batches]).tolist() == [*range(2 * ROWS)]
    assert np.asarray(batches[1][0]["x"])[:, 0].tolist() == [*range(16, 32, 2)]
    again = [*made(plan, source, transforms=(Noise(),), epochs=2, seed=0)]
    assert np.concatenate([labels for _, labels in again]).tolist() == noise.tolist()


class Drop(grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return False


def without(name: str) -> Rows:
    tree = {"batch": {"x": np.zeros((ROWS, 4)), "extra": (np.zeros(ROWS, int),)}}
    whole: dict[str, Any] = {**tree, "labels": np.zeros(ROWS, jnp.bfloat16)}
    if name == "x":
        del whole["batch"]["x"]
    else:
        del whole[name]
    return Rows(whole)


SPARSE = grain.MapDataset.range(50).filter(lambda n: n % 2 == 0).map(lambda n: rows()[n % ROWS])
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (rows(7), {}, "the source has 7 rows, a batch of batch, labels has 8"),
    (without("labels"), {}, "missing labels, too many nothing"),
    (without("x"), {}, r"lacks batch\['x'\] and has nothing beside"),
    ([1.0] * 20, {}, "an element of the source is a float, the loader is for batch, labels"),
    (Rows((np.zeros(20),) * 3), {}, "an element of the source is 3 parts"),
    ({"x": np.zeros(20)}, {}, r"the source is a dict: pass what .* arrays as autopar.data.Rows"),
    (iter([]), {}, "the source is a list_iterator"),
    (grain.MapDataset.range(3).repeat(), {}, "the source has no end"),
    (SPARSE, {}, "drops or adds rows"),
    (rows(), {"transforms": (Drop(),)}, "transforms has <.*Drop object"),
    (
        rows(),
        {"transforms": (lambda e: {**e, "labels": np.float64(1)},)},
        r"has labels as float64\[\], the plan takes bfloat16\[\] of each row",
    ),
    (
        rows(),
        {"transforms": (lambda e: {**e, "batch": {**e["batch"], "x": np.zeros(5)}},)},
        r"has batch\['x'\] as float64\[5\], the plan takes float32\[4\] of each row",
    ),
]


@pytest.mark.parametrize(
    ("source", "options", "message"), REFUSED, ids=[message[:25] for *_, message in REFUSED]
)
def test_a_source_that_does_not_fit_is_refused(
    plan: autopar.Plan, source: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        made(plan, source, **options)


def test_an_element_that_differs_later_loses_nothing(plan: autopar.Plan) -> None:
    """The error is that of the batch that has it; what comes then begins there."""
    broken = [True]

    def transform(element: Any) -> Any:
        is_bad = broken[0] and element["batch"]["extra"][0] == 11
        return None if is_bad else element

    for reading in (AT_ONCE, Reading(0, 1, 2)):
        broken[0] = True
        with made(plan, transforms=(transform,), reading=reading, depth=1) as given:
            assert given_out(given, 1) == [[*range(8)]]
            with pytest.raises(DataError, match="element 11 of the source is None"):
                next(given)
            broken[0] = False
            assert given_out(given, 1) == [[*range(8, 16)]]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", 0),
        ("epochs", 1.5),
        ("at_end", "stop"),
        ("depth", -1),
        ("seed", -1),
        ("seed", 2**32),
    ],
)
def test_options_that_make_no_sense_are_refused(
    plan: autopar.Plan, option: str, value: object
) -> None:
    with pytest.raises(InvalidOption, match=f"loader: {option} is {value!r}"):
        made(plan, **{option: value})


def test_names_are_those_that_the_plan_prints(plan: autopar.Plan) -> None:
    x, extra = next(
        loader(Rows((np.ones((ROWS, 4)), np.arange(ROWS))), plan, "batch['x']", "batch['extra'][0]")
    )
    assert x.shape == (BATCH, 4)
    assert np.asarray(extra).tolist() == [*range(8)]
    (labels,) = next(loader(np.arange(ROWS).astype(jnp.bfloat16), plan, "labels"))
    assert labels.shape == (BATCH,)
    (named,) = next(loader(Rows({"labels": np.ones(ROWS, jnp.bfloat16)}), plan, "labels"))
    assert named.shape == (BATCH,)
    with pytest.raises(SignatureMismatch, match="no argument 'image' that is planned; there are"):
        loader(rows(), plan, "image")
    with pytest.raises(DataError, match=r"as many rows in every array.*w \[4, 2\], labels \[8\]"):
        loader(rows(), plan, "w", "labels")
    with pytest.raises(DataError, match="name the arguments"):
        loader(rows(), plan)


def test_a_compiled_function_is_read_for_by_its_only_plan() -> None:
    run = autopar.compile(lambda x: x.sum(), cluster="cpu8", mesh={"a": 8})
    with pytest.raises(SignatureMismatch, match="was not planned yet, so where x lies"):
        loader(np.zeros(32, np.float32), run, "x")
    run.plan(S((8,), jnp.float32))
    assert loader(np.zeros(32, np.float32), run, "x").batch_size == 8
    run.plan(S((16,), jnp.float32))
    with pytest.raises(SignatureMismatch, match="2 plans were made"):
        loader(np.zeros(32, np.float32), run, "x")


def test_workers_are_refused_that_would_run_the_script(
    plan: autopar.Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "train.py").write_text("train()\n")
    monkeypatch.setitem(sys.modules, "__main__", script(str(tmp_path / "train.py")))
    with pytest.raises(InvalidOption, match=r"2 workers imports .*train.py, and would run it"):
        made(plan, reading=Reading(workers=2))


def test_without_grain_the_extra_is_named(
    plan: autopar.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grain", None)
    monkeypatch.delitem(sys.modules, "autopar.data.pipeline", raising=False)
    monkeypatch.delattr("autopar.data.pipeline", raising=False)
    with pytest.raises(MissingExtra, match=r"reads by grain.*pip install 'autopar\[train\]'"):
        made(plan)


def test_a_process_without_devices_is_refused(plan: autopar.Plan) -> None:
    nothing: Any = SimpleNamespace(addressable_devices_indices_map=lambda _: {})
    elsewhere = replace(Arguments.of(plan, ("labels",)), shardings=(nothing,))
    with pytest.raises(InvalidMesh, match="none of the plan's devices: make loaders in those"):
        _ = elsewhere.rows


def test_waits_are_counted(plan: autopar.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock by which a batch takes 3 seconds, and what else a loop does takes 1."""
    now = [0.0]

    def slow(element: Any) -> Any:
        now[0] += 3 / BATCH
        return element

    given = made(plan, transforms=(slow,))
    monkeypatch.setattr("autopar.data.load.perf_counter", lambda: now[0])
    next(given)
    before = given.waits
    for _ in range(4):
        now[0] += 1
        next(given)
    assert given.waits - before == Waits(batches=4, waited_s=12.0, busy_s=4.0)
    assert (given.waits - before).share == 0.75
    assert Waits().share == 0


def test_rows_say_what_is_wrong_with_arrays() -> None:
    with pytest.raises(DataError, match=r"there are arrays\['x'\] 3, arrays\['y'\] 2"):
        Rows({"x": np.zeros(3), "y": np.zeros(2)})
    with pytest.raises(DataError, match="no arrays"):
        Rows({})
    assert Rows([np.arange(3), np.ones((3, 2))])[1][0] == 1
