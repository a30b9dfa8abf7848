"""A step on micro-batches: the values of plain JAX, less memory, one reduction; a clear error where it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import autopar
from autopar.errors import BatchNotCut, InvalidOption
from autopar.inspect.hlo import collectives_of
from examples import gpt_text
from tests import small_models
from tests.api.same import assert_same

draw = np.random.default_rng(0)
X = draw.normal(size=(16, 8)).astype(np.float32)
LABELS = draw.integers(0, 5, size=16).astype(np.int32)
KEPT = (draw.random(16) < 0.6).astype(np.float32)
W = draw.normal(size=(8, 5)).astype(np.float32)
SQUARE = (np.eye(8) + 0.1).astype(np.float32)


def assert_accumulates(
    step: Callable[..., Any], *args: Any, batch: Any = None, count: int = 4
) -> Any:
    """The step on micro-batches gives what it gives; the lowered program is returned."""
    wanted = jax.jit(step)(*args)
    lowered = jax.jit(autopar.accumulate(step, count, batch=batch)).lower(*args)
    assert "stablehlo.while" in lowered.as_text()
    assert_same(lowered.compile()(*args), wanted)
    return lowered


def cross_entropy(w: Any, x: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(x @ w, labels)


# Models ---------------------------------------------------------------------------------------------------------------


@pytest.mark.quick_share(4)
@pytest.mark.parametrize(("name", "count"), [("mlp", 2), ("tied", 2), ("gpt", 4), ("bert", 2)])
def test_gradients_of_models_are_those_of_plain_jax(name: str, count: int) -> None:
    """Dropout, tied embeddings, causal masks; sums of another order differ by rounding."""
    fn, args = small_models.loss_and_grads(name)
    assert_accumulates(fn, *args, count=count)


@pytest.mark.slow
def test_the_example_takes_a_fraction_of_its_memory() -> None:
    """Dropout and Adam, over 4 layers: activations of a fourth of the batch at a time."""
    step, (state, *_) = gpt_text.training_step()

    def fn(state: Any, tokens: Any, targets: Any) -> Any:
        new, loss = step(state, tokens, targets)
        return new["opt"]["m"], new["key"], loss

    args = (state, *next(gpt_text.batches(1)))
    whole = jax.jit(fn).lower(*args).compile().memory_analysis().temp_size_in_bytes
    cut = assert_accumulates(fn, *args).compile().memory_analysis().temp_size_in_bytes
    assert cut < 0.4 * whole


def adam_step(optimizer: Any) -> Callable[..., Any]:
    def step(state: Any, x: Any, labels: Any) -> Any:
        params, opt = state
        loss, grads = jax.value_and_grad(
            lambda p: (cross_entropy(p["w"], x, labels) + p["b"]).mean()
        )(params)
        updates, opt = optimizer.update(grads, opt, params)
        hits = jnp.argmax(x @ params["w"], -1) == labels
        metrics = {
            "loss": loss,
            "norm": jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads))),
            "accuracy": hits.mean(),
        }
        return (optax.apply_updates(params, updates), opt), metrics

    return step


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(1e-3),
        optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-3)),
        optax.apply_if_finite(optax.sgd(1e-2), 3),
    ],
    ids=["adam", "clipped", "finite"],
)
def test_the_optimizer_runs_once_on_all_gradients(optimizer: Any) -> None:
    params = {"w": W, "b": np.float32(0.5)}
    args = (params, optimizer.init(params)), X, LABELS
    step = adam_step(optimizer)
    assert_accumulates(step, *args)
    jaxpr = jax.make_jaxpr(autopar.accumulate(step, 4))(*args)
    (loop,) = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    assert "sqrt" in str(jaxpr)
    assert "sqrt" not in {e.primitive.name for e in loop.params["jaxpr"].eqns}


def test_layers_in_a_scan_with_dropout_and_remat() -> None:
    """Keys go through the layers; each layer's mask is made on its slice; an auxiliary loss of every layer is added."""

    def step(state: Any, x: Any) -> Any:
        def loss(layers: Any) -> Any:
            def layer(carry: Any, w: Any) -> Any:
                h, key = carry
                key, own = jax.random.split(key)
                h = jnp.tanh(h @ w)
                return (jnp.where(jax.random.bernoulli(own, 0.8, h.shape), h, 0), key), (
                    h**2
                ).mean()

            carry = x, state["key"]
            (h, key), penalties = jax.lax.scan(jax.checkpoint(layer), carry, layers)
            return ((h - 0.5) ** 2).mean() + penalties.sum(), key

        (value, key), grads = jax.value_and_grad(loss, has_aux=True)(state["layers"])
        return {"layers": state["layers"] - 0.1 * grads, "key": key}, value

    layers = draw.normal(size=(3, 8, 8)).astype(np.float32)
    assert_accumulates(step, {"layers": layers, "key": jax.random.key(1)}, X)


# What is combined -----------------------------------------------------------------------------------------------------


def shared_weight(w: Any, x: Any) -> Any:
    """The gradient of a weight that all rounds of a scan share is a carry of its backward loop."""

    def loss(w: Any) -> Any:
        h, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=3)
        return (h**2).mean()

    return jax.value_and_grad(loss)(w)


def masked_mean(w: Any, x: Any, labels: Any, kept: Any) -> Any:
    """Every example's gradient reads how many are kept, which is counted once, beforehand."""

    def loss(w: Any) -> Any:
        return (cross_entropy(w, x, labels) * kept).sum() / kept.sum()

    return jax.value_and_grad(loss)(w)


def own_loop(w: Any, x: Any) -> Any:
    """A while loop inside the step."""
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] @ w), (0, x))[1].sum()


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "shared weight": (shared_weight, (SQUARE, X), 1),
    "masked mean": (masked_mean, (W, X, LABELS, KEPT), (1, "labels", 3)),
    "while": (own_loop, (SQUARE, X), "x"),
    "extremes": (lambda w, x: ((x @ w).max(), (x @ w).min(0), (x @ w > 3).any()), (W, X), 1),
    "rows": (lambda w, x: (jnp.tanh(x @ w), (x @ w).T), (W, X), 1),
    "normed input": (lambda w, x: jnp.abs(((x - x.mean(0)) / x.std(0)) @ w).sum(), (W, X), 1),
    "choice": (
        lambda w, on, x: jax.lax.cond(on, lambda: jnp.tanh(x @ w).sum(), lambda: (x @ w).sum()),
        (W, True, X),
        "x",
    ),
    "rows in groups": (lambda w, x: jnp.tanh(x.reshape(4, 4, 8) @ w).sum(), (W, X), 1),
    "own rows": (lambda w, x: (jnp.eye(16) @ (x @ w)).sum(0), (W, X), 1),
    "of each example": (
        lambda w, x: jax.vmap(jax.grad(lambda w, r: jnp.tanh(r @ w).sum()), (None, 0))(w, x).max(0),
        (W, X),
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_combined_is_what_the_whole_batch_gives(name: str) -> None:
    step, args, batch = CASES[name]
    assert_accumulates(step, *args, batch=batch)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_random_bits_are_those_of_plain_jax(implementation: str) -> None:
    def step(key: Any, x: Any) -> Any:
        first, second = jax.random.split(key)
        kept = jnp.where(jax.random.bernoulli(first, 0.5, x.shape), x, 0)
        return kept + jax.random.normal(second, x.shape), second

    assert_accumulates(step, jax.random.key(3, impl=implementation), X, batch="x")


def test_gradients_in_bfloat16_are_summed_in_float32() -> None:
    """256 slices whose gradients are 1 each: in bfloat16 a sum of ones stops growing at 256, of 257 ones too."""

    def step(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: (x * w).sum())(w)

    ones = jnp.ones((512, 1), jnp.bfloat16)
    found = jax.jit(autopar.accumulate(step, 512, batch=1))(ones[0], ones)
    assert found.dtype == jnp.bfloat16
    assert found == 512


# Compiled -------------------------------------------------------------------------------------------------------------


def test_data_parallel_gradients_are_reduced_once_behind_the_loop() -> None:
    """Rows stay where they are: every nth one is in a slice."""
    fn, args = small_models.loss_and_grads("mlp", batch=128)
    compiled = autopar.compile(
        autopar.accumulate(fn, 4),
        cluster="cpu8",
        mesh={"x": 8},
        constraints=autopar.data_parallel(),
    )
    assert_same(compiled(*args), jax.jit(fn)(*args))
    moves = compiled.plan(*args).program().collectives
    leaves = jax.tree.leaves(args[0]["params"])
    assert {(move.kind, move.region) for move in moves} == {("all_reduce", None)}
    assert sum(move.size_bytes for move in moves) == 4 + sum(leaf.nbytes for leaf in leaves)

    found = collectives_of(compiled.lower(*args).compile())
    assert {collective.kind for collective in found} == {"all_reduce"}
    assert {collective.times for collective in found} == {1}


# What cannot be cut ---------------------------------------------------------------------------------------------------


def batch_norm(w: Any, x: Any) -> Any:
    h = x @ w
    return ((h - h.mean(0)) ** 2).sum()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (batch_norm, r"sub \(test_accumulate.py:\d+ \(batch_norm\)\) reads.*what reduce_sum"),
        (lambda w, x: jnp.sort((x @ w).sum(1)), r"sort \(test_accumulate.py.*all examples"),
        (lambda w, x: jnp.cumsum(x @ w, 0).sum(), r"cumsum \(test_accumulate.py.*all examples"),
        (
            lambda w, x: (jax.debug.print("{}", x.sum()), (x @ w).sum())[1],
            r"debug_\w+ \(test_accumulate.py.*calls the host",
        ),
    ],
    ids=["batch norm", "sort", "cumsum", "print"],
)
def test_what_cannot_be_cut_is_named(step: Callable[..., Any], said: str) -> None:
    with pytest.raises(BatchNotCut, match=said):
        autopar.accumulate(step, 4, batch=1)(W, X)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: autopar.accumulate(batch_norm, 0), "micro_batches is 0"),
        (lambda: autopar.accumulate(3, 2), "cannot be called"),  # pyright: ignore[reportArgumentType]
        (lambda: autopar.accumulate(batch_norm, 3, batch=1)(W, X), "argument x has 16 rows"),
        (lambda: autopar.accumulate(batch_norm, 2, batch="y")(W, X), "'y', but.* are w, x"),
        (lambda: autopar.accumulate(batch_norm, 2, batch=())(W, X), "no argument.*its batch"),
    ],
    ids=["count", "step", "rows", "name", "none"],
)
def test_bad_input_is_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        call()
