"""Repeats: layers written out are found wherever they stand, and nothing is taken for another's repetition wrongly."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar._compat import untyped_jax
from autopar.core.graph import OpGraph
from autopar.core.recompute import with_recomputed
from autopar.core.repeats import RepeatRun, repeats, runs_of
from autopar.search.recomputable import recomputable
from autopar.trace import trace

LETTERS = st.integers(0, 3)


@settings(max_examples=200, deadline=None)
@given(st.lists(LETTERS, max_size=60))
def test_what_repeats_looks_the_same_and_is_the_first_of_its_kind(letters: list[int]) -> None:
    first = repeats(np.array(letters, dtype=np.intp)).tolist()
    assert all(
        letters[n] == letters[of] and of <= n and first[of] == of for n, of in enumerate(first)
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 5), st.integers(2, 12), st.integers(2, 9), st.integers(0, 5))
def test_every_copy_of_a_body_repeats_the_first(
    before: int, body: int, copies: int, after: int
) -> None:
    text = [*range(100, 100 + before), *list(range(body)) * copies, *range(200, 200 + after)]
    assert runs_of(np.array(text, dtype=np.intp)) == [
        RepeatRun(before, before + body * copies, body)
    ]
    first = repeats(np.array(text, dtype=np.intp)).tolist()
    assert first[before : before + body * copies] == list(range(before, before + body)) * copies


def test_stretches_do_not_overlap_and_the_one_that_saves_the_most_is_taken() -> None:
    text = [7, 7, 7, *[1, 2, 3, 3] * 6, 9, *[4, 5] * 3]
    assert runs_of(np.array(text, dtype=np.intp)) == [
        RepeatRun(0, 3, 1),
        RepeatRun(3, 27, 4),
        RepeatRun(28, 34, 2),
    ]


@pytest.mark.parametrize("layers", [4, 9])
def test_a_training_step_has_the_operators_of_one_layer(layers: int) -> None:
    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = x + jnp.tanh(x @ p["up"]) @ p["down"]
        return (x**2).mean()

    def step(params: Any, x: Any) -> Any:
        return untyped_jax.tree.map(
            lambda p, g: p - 0.1 * g, params, untyped_jax.grad(loss)(params, x)
        )

    layer = {"up": np.zeros((8, 16), np.float32), "down": np.zeros((16, 8), np.float32)}
    graph = trace(step, ([layer] * layers, np.zeros((4, 8), np.float32))).graph
    assert len(set(graph.repeats)) < len(graph.ops) / layers + 20
    assert all(graph.alike[n] == graph.alike[first] for n, first in enumerate(graph.repeats))


def test_of_stretches_that_overlap_one_is_cut_short() -> None:
    text = [
        *[1, 2, 3, 4] * 5,
        *[1, 2, 5, 5, 5] * 9,
    ]  # the first goes on for two positions of the second
    assert runs_of(np.array(text, dtype=np.intp)) == [RepeatRun(0, 20, 4), RepeatRun(20, 65, 5)]


@settings(max_examples=50, deadline=None)
@given(st.integers(20, 40), st.integers(3, 9), st.integers(0, 19))
def test_what_differs_in_every_copy_stands_for_itself(body: int, copies: int, odd: int) -> None:
    text = [1000 + n if place == odd else place for n in range(copies) for place in range(body)]
    first = repeats(np.array(text, dtype=np.intp)).tolist()
    known = [place for place in range(body) if place != odd]
    for n in range(copies):
        assert [first[n * body + place] for place in known] == known
        assert first[n * body + odd] == n * body + odd


def dropped(layers: int) -> OpGraph:
    """A training step whose layers have keys of their own, written out."""

    def loss(params: Any, x: Any, key: Any) -> Any:
        keys = jax.random.split(key, layers)
        for p, own in zip(params, keys, strict=True):
            y = jnp.tanh(x @ p["up"])
            x = x + jnp.where(jax.random.bernoulli(own, 0.9, y.shape), y, 0.0) @ p["down"]
        return (x**2).mean()

    def step(params: Any, x: Any, key: Any) -> Any:
        grads: Any = untyped_jax.grad(loss)(params, x, key)
        return untyped_jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    layer = {"up": np.zeros((8, 16), np.float32), "down": np.zeros((16, 8), np.float32)}
    args = [layer] * layers, np.zeros((4, 8), np.float32), jax.random.key(0)
    return trace(step, args).graph


def test_layers_with_keys_of_their_own_repeat() -> None:
    few, many = dropped(6), dropped(12)
    assert len(many.ops) > 1.8 * len(few.ops)
    assert len(set(many.repeats)) < len(set(few.repeats)) + 20


def test_what_runs_once_more_repeats_as_its_original_does() -> None:
    """Also where other operators do so in every layer: the order of the graph tells nothing then."""
    graph = dropped(12)
    every = recomputable(graph)
    some = [one for n, one in enumerate(every) if np.random.default_rng(n).random() < 0.7]
    assert 24 <= len(some) < len(every)
    rewritten = with_recomputed(graph, some, residuals=True)
    assert len(set(rewritten.repeats)) < len(set(with_recomputed(graph, every).repeats)) + 20
    assert len(set(rewritten.repeats)) < len(set(rewritten.graph.repeats)) / 2
    for n, first in enumerate(rewritten.repeats):
        assert rewritten.graph.alike[n] == rewritten.graph.alike[first]
        assert rewritten.keys[n][0] == rewritten.keys[first][0]
