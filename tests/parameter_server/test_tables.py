"""Tables: values are those of the whole table in plain JAX, and only touched rows travel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from autopar import parameter_server as ps
from autopar.errors import GradientMismatch, InvalidJob, UnknownParameter
from autopar.parameter_server.cluster import local
from autopar.parameter_server.layout import Layout
from autopar.parameter_server.sharding import Shard
from tests.parameter_server.processes import none_left

ROWS, WIDTH, IDS = 1000, 4, 6
PARAMS = {
    "embedding": np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32),
    "w": np.full((WIDTH, 1), 0.5, np.float32),
}


def loss(params: Any, batch: Any) -> Any:
    """As one writes it for a whole table: the mean embedding of some words against a target."""
    words = params["embedding"][batch["words"]]
    return jnp.mean((words.mean(axis=1) @ params["w"] - batch["y"]) ** 2)


def batch_of(step: int, index: int, count: int) -> Any:
    """Four examples of few words, some of which several workers read."""
    draw = np.random.default_rng(step)
    words = draw.choice(20, size=(4, IDS)).astype(np.int32) * 50
    part = slice(4 * index // count, 4 * (index + 1) // count)
    return {"words": words[part], "y": np.ones((4, 1), np.float32)[part]}


def layout() -> Layout:
    names = {"embedding": "embedding", "w": "w"}
    shards = ((Shard("embedding", 0, 400), Shard("w", 0, 4)), (Shard("embedding", 400, 1000),))
    shapes = {name: jax.ShapeDtypeStruct(v.shape, v.dtype) for name, v in PARAMS.items()}
    return Layout(names, shapes, shards, {"embedding": ("words",)}, 10.0)


def test_rows_are_asked_of_the_servers_that_have_them() -> None:
    batch = {"words": np.array([[900, 3, 3], [399, 400, 900]]), "y": np.ones(2)}
    touched = layout().touched(batch)
    first, second = layout().wanted(touched)
    np.testing.assert_array_equal(first["embedding[0:400]"], [3, 399])
    np.testing.assert_array_equal(second["embedding[400:1000]"], [0, 500])
    assert first["w[0:4]"] is None
    assert touched["embedding"].places == 6 + 1


def test_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(UnknownParameter, match="words of the batch name rows 0 to 1000 of table"):
        layout().touched({"words": np.array([0, 1000])})
    with pytest.raises(UnknownParameter, match="'words' of a batch, which has ids, y"):
        layout().touched({"ids": np.array([0]), "y": np.ones(1)})


def test_a_loss_that_reads_the_whole_table_is_refused() -> None:
    touched = layout().touched({"words": np.array([1, 2])})
    dense = {"embedding": np.ones((3, WIDTH), np.float32), "w": PARAMS["w"]}
    with pytest.raises(GradientMismatch, match="rows of table 'embedding' that its batch"):
        layout().split(dense, touched)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": {"x": "words"}}, "tables names 'x'; the parameters are embedding, w"),
        ({"staleness": -1}, "staleness is -1"),
        ({"workers": 0}, "workers is 0, it must be at least 1"),
        ({"params": {}}, "holds no array"),
    ],
)
def test_jobs_without_sense_are_refused(change: dict[str, Any], message: str) -> None:
    given = {"params": PARAMS, "optimizer": optax.sgd(0.1), "steps": 1}
    with pytest.raises(InvalidJob, match=message):
        ps.Job(**{**given, **change})


@pytest.fixture
def _ray() -> Iterator[None]:
    with none_left(), local():
        yield


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # Ray forks, of which JAX warns
@pytest.mark.usefixtures("_ray")
def test_only_touched_rows_travel_and_values_are_those_of_the_whole_table() -> None:
    """Bytes are counted: rows of four floats with their numbers, in both directions, and the small parameter."""
    steps, workers = 4, 2
    asked = ps.Job(
        PARAMS,
        optax.adam(1e-2),
        steps,
        servers=2,
        workers=workers,
        tables={"embedding": "words"},
        table_optimizer=optax.adagrad(0.1),
        patience_s=20.0,
    )
    found = ps.train(asked, loss, batch_of, devices=1, mesh={"x": 1})

    params = PARAMS
    optimizer = optax.partition(
        {"rows": optax.adagrad(0.1), "all": optax.adam(1e-2)}, {"embedding": "rows", "w": "all"}
    )
    state = optimizer.init(params)
    for step in range(steps):
        gradients = jax.grad(loss)(params, batch_of(step, 0, 1))
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found.params, params
    )

    rows = sum(
        len(np.unique(batch_of(step, worker, workers)["words"]))
        for step in range(steps)
        for worker in range(workers)
    )
    small = steps * workers * PARAMS["w"].nbytes
    travelled = rows * (WIDTH * 4 + np.dtype(np.int32).itemsize) + small
    assert found.traffic == ps.Traffic(travelled, travelled)
    assert travelled < steps * workers * PARAMS["embedding"].nbytes / 20
