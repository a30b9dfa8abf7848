"""The two examples in plain JAX: they take the shapes they announce, and they learn."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> ModuleType:
    """An example as `autopar report` loads it: from its file."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def losses(example: ModuleType, batches: Iterator[Any]) -> tuple[list[float], Any]:
    """The loss of each step from the initial state on, and the last state."""
    step, (state, *_) = example.training_step()
    run = jax.jit(step)
    found = []
    for batch in batches:
        state, loss = run(state, *batch)
        found.append(float(loss))
    return found, state


@pytest.mark.parametrize("name", ["digits_mlp", "gpt_text"])
def test_the_announced_shapes_are_those_of_the_data(name: str) -> None:
    example = load(name)
    step, (state, *batch) = example.training_step()
    first, second = islice(example.batches(2), 2)
    assert shapes(tuple(batch)) == shapes(first) == shapes(second)
    new_state, loss = jax.eval_shape(step, state, *batch)
    assert shapes(new_state) == shapes(state)
    assert loss.shape == ()


@pytest.mark.parametrize("name", ["digits_mlp", "gpt_text"])
def test_two_runs_see_the_same_batches(name: str) -> None:
    example = load(name)
    for one, other in islice(
        zip(example.batches(1, seed=3), example.batches(1, seed=3), strict=True), 3
    ):
        jax.tree.map(np.testing.assert_array_equal, one, other)
    assert not np.array_equal(
        next(example.batches(1, seed=3))[0], next(example.batches(1, seed=4))[0]
    )


def test_digits_are_padded_images_in_the_middle() -> None:
    images, labels = load("digits_mlp").digits()
    assert images.shape == (1797, 784)
    assert set(labels) == set(range(10))
    square = images.reshape(-1, 28, 28)
    assert square[:, 10:18, 10:18].sum() == square.sum() > 0
    assert images.min() == 0
    assert images.max() == 1


def test_an_epoch_of_digits_shows_every_training_image_once() -> None:
    example = load("digits_mlp")
    seen = np.concatenate([images for images, _ in example.batches(1)])
    wanted = example.digits()[0][: example.TRAINING_IMAGES]
    np.testing.assert_array_equal(np.sort(seen.sum(1)), np.sort(wanted.sum(1)))


def test_the_classifier_learns() -> None:
    example = load("digits_mlp")
    found, state = losses(example, example.batches(4))
    assert np.mean(found[-45:]) < np.mean(found[:45]) / 3
    assert example.accuracy(state["params"]) > 0.9


def test_without_scikit_learn_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install autopar\[examples\]"):
        next(load("digits_mlp").batches())


def test_a_target_is_the_byte_that_follows() -> None:
    tokens, targets = next(load("gpt_text").batches(1))
    np.testing.assert_array_equal(tokens[:, 1:], targets[:, :-1])
    assert tokens.min() >= 0
    assert tokens.max() < 256


@pytest.mark.slow
def test_the_gpt_learns_and_its_key_moves_on() -> None:
    example = load("gpt_text")
    found, state = losses(example, example.batches(12))
    assert found[-1] < found[0] - 1.5
    assert int(state["opt"]["count"]) == 12
    assert state["key"] != example.initial_state()["key"]


def test_the_gpt_sees_no_later_byte() -> None:
    example = load("gpt_text")
    params = example.initial_state()["params"]
    tokens, _ = next(example.batches(1))
    changed = tokens.copy()
    changed[:, 40:] = 255 - changed[:, 40:]
    before, after = (np.asarray(example.predict(params, None, t)) for t in (tokens, changed))
    np.testing.assert_allclose(before[:, :40], after[:, :40], atol=1e-5)
    assert np.abs(before[:, 40:] - after[:, 40:]).max() > 0.1


@pytest.mark.parametrize("name", ["digits_mlp", "gpt_text"])
def test_what_should_split_divides_by_eight(name: str) -> None:
    _, (state, *batch) = load(name).training_step()
    sizes = {size for leaf in jax.tree.leaves((state, batch)) for size in leaf.shape}
    assert {size for size in sizes if size % 8} <= {10}
