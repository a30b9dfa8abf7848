"""A server's numbers: updates are optax's, of tables those of touched rows; what is saved comes back bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import GradientMismatch, ParameterServerError, UnknownParameter
from autopar.parameter_server.checkpoints import Manifest, path_of, read_arrays, write_arrays
from autopar.parameter_server.records import Part, Saved
from autopar.parameter_server.sharding import Shard
from autopar.parameter_server.store import Rows, Store

DENSE, TABLE = Shard("w", 0, 4), Shard("t", 0, 6)
KEYS = (DENSE.key, TABLE.key)


def part(dense: Any = None, table: Any = None) -> Part:
    return Part(
        (DENSE, TABLE), frozenset({"t"}), dense or optax.adam(0.1), table or optax.adagrad(0.1)
    )


def values() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        DENSE.key: draw.normal(size=(4, 3)).astype(np.float32),
        TABLE.key: draw.normal(size=(6, 2)).astype(np.float32),
    }


def gradient(seed: int, ids: list[int]) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(len(ids), 2)).astype(np.float32)
    return {
        DENSE.key: draw.normal(size=(4, 3)).astype(np.float32),
        TABLE.key: Rows(np.array(ids, np.int64), rows),
    }


def stepped(optimizer: Any, value: Any, gradients: list[Any]) -> Any:
    """Plain optax."""
    state = optimizer.init(value)
    for one in gradients:
        updates, state = optimizer.update(one, state, value)
        value = optax.apply_updates(value, updates)
    return value


IDS = st.lists(st.integers(0, 5), max_size=6, unique=True).map(sorted)


@settings(max_examples=15)
@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=4), st.sampled_from(["sgd", "adagrad"]))
def test_rows_alone_are_updated_as_the_whole_table_would_be(
    touched: list[tuple[list[int], list[int]]], name: str
) -> None:
    """By two workers of unequal shares; schedules count updates, also those that touch no row."""
    optimizer = getattr(optax, name)(optax.linear_schedule(0.2, 0.1, 3))
    store, means = Store(part(table=optimizer), values()), []
    for n, (one, other) in enumerate(touched):
        pushed = [(gradient(2 * n, one), 0.75), (gradient(2 * n + 1, other), 0.25)]
        store.apply(pushed)
        mean = {"w": np.zeros((4, 3), np.float32), "t": np.zeros((6, 2), np.float32)}
        for g, share in pushed:
            mean["w"] += np.float32(share) * g[DENSE.key]
            mean["t"][g[TABLE.key].ids] += np.float32(share) * g[TABLE.key].values
        means.append(mean)

    found = store.read(dict.fromkeys(KEYS))
    dense = stepped(optax.adam(0.1), values()[DENSE.key], [mean["w"] for mean in means])
    table = stepped(optimizer, values()[TABLE.key], [mean["t"] for mean in means])
    np.testing.assert_allclose(found[DENSE.key], dense, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[TABLE.key], table, rtol=1e-5, atol=1e-6)
    kept = sorted(set(range(6)) - {i for pair in touched for ids in pair for i in ids})
    np.testing.assert_array_equal(found[TABLE.key][kept], values()[TABLE.key][kept])


def test_rows_are_read_by_number() -> None:
    found = Store(part(), values()).read({TABLE.key: np.array([4, 1])})
    np.testing.assert_array_equal(found[TABLE.key], values()[TABLE.key][[4, 1]])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x[0:1]": np.zeros(1)}, UnknownParameter, r"gradients of .*x\[0:1\]"),
        ({DENSE.key: np.zeros((4, 2), np.float32)}, GradientMismatch, r"float32\[4, 2\]"),
        ({DENSE.key: np.zeros((4, 3))}, GradientMismatch, r"float64\[4, 3\]"),
        (
            {TABLE.key: Rows(np.array([6]), np.zeros((1, 2), np.float32))},
            UnknownParameter,
            "rows 6 to 6 of t",
        ),
        (
            {TABLE.key: Rows(np.array([5]), np.zeros((1, 3), np.float32))},
            GradientMismatch,
            r"float32\[1, 3\]",
        ),
    ],
    ids=["name", "shape", "type", "row", "width"],
)
def test_gradients_of_other_parameters_are_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    store = Store(part(), values())
    store.check(gradient(0, [1, 2]))
    with pytest.raises(error, match=message):
        store.check(gradient(0, [1, 2]) | change)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_a_store_goes_on_where_it_was_saved(tmp_path: Path, dtype: Any) -> None:
    before = jax.tree.map(lambda value: value.astype(dtype), values())
    cast = lambda seed, ids: {  # noqa: E731
        DENSE.key: gradient(seed, ids)[DENSE.key].astype(dtype),
        TABLE.key: Rows(np.array(ids), gradient(seed, ids)[TABLE.key].values.astype(dtype)),
    }
    store = Store(part(), before)
    store.apply([(cast(0, [1, 3]), 1.0)])
    path = tmp_path / "new" / "file.npz"
    saved = store.arrays()
    store.apply([(cast(1, [2, 3]), 1.0)])
    write_arrays(path, saved)

    other = Store(part(), before)
    other.restore(read_arrays(path))
    other.apply([(cast(1, [2, 3]), 1.0)])
    jax.tree.map(np.testing.assert_array_equal, store.arrays(), other.arrays())
    with pytest.raises(ParameterServerError, match="another optimizer"):
        Store(part(dense=optax.sgd(0.1)), before).restore(read_arrays(path))


def test_a_file_is_whole_or_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.npz"
    write_arrays(path, {"a": np.arange(3)})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(ParameterServerError, match="No space left"):
        write_arrays(path, {"a": np.arange(4)})
    assert [one.name for one in tmp_path.iterdir()] == ["file.npz"]
    np.testing.assert_array_equal(read_arrays(path)["a"], np.arange(3))


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_a_damaged_file_is_told(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "file.npz"
    write_arrays(path, {"a": np.arange(1000)})
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        content[len(content) // 2] ^= 255
        path.write_bytes(content if damage == "flipped" else content[: len(content) // 2])
    with pytest.raises(ParameterServerError, match=r"file\.npz cannot be read"):
        read_arrays(path)


def test_the_manifest_keeps_the_latest_versions_and_removes_the_others(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path, [[DENSE], [TABLE]])
    assert manifest.versions() == []
    for version in (0, 5, 10):
        for server in (0, 1):
            write_arrays(path_of(tmp_path, version, server, 2), {"a": np.arange(2)})
        manifest.add(Saved(version, {0: version, 1: version - 1}))
    assert manifest.versions() == [Saved(10, {0: 10, 1: 9}), Saved(5, {0: 5, 1: 4})]
    manifest.add(Saved(7, {}))  # which came late
    assert [saved.version for saved in manifest.versions()] == [10, 7]
    manifest.roll_back(Saved(7, {}))
    assert [saved.version for saved in manifest.versions()] == [7]
    manifest.add(Saved(9, {}))
    assert [saved.version for saved in manifest.versions()] == [9, 7]
    names = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert names == {"00000010"}  # of 7 and 9 there are no files here, 5 is past
    with pytest.raises(ParameterServerError, match="other shards"):
        Manifest(tmp_path, [[DENSE, TABLE]]).versions()
