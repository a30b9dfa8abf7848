"""A traced graph computes what the function computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar.trace import trace
from tests import small_models as models
from tests.quick_compile import QUICK
from tests.trace.evaluate import as_function, assert_same

GPT: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "sequence": 8, "batch": 4, "vocab": 32}


def assert_traced_equal(
    fn: Any, args: tuple[Any, ...], tolerance: float = 1e-6, **kwargs: Any
) -> None:
    traced = trace(fn, args, kwargs)
    expected, found = (
        jax.jit(f, compiler_options=QUICK)(*args, **kwargs) for f in (fn, as_function(traced))
    )
    assert_same(expected, found, tolerance)


@pytest.mark.slow
@pytest.mark.quick_share(2)
@pytest.mark.parametrize(("remat", "typed_key"), [(True, True), (False, False)])
def test_gpt_with_dropout(remat: bool, typed_key: bool) -> None:
    fn, args = models.loss_and_grads("gpt", remat=remat, typed_key=typed_key, **GPT)
    assert_traced_equal(fn, args)


def test_gpt_step_gives_the_same_next_key() -> None:
    step, args = models.gpt(optimiser="sgd", typed_key=True, **(GPT | {"layers": 1}))
    assert_traced_equal(step, args)


def test_mlp_adam_step() -> None:
    assert_traced_equal(*models.mlp(optimiser="adam", widths=(8, 16, 8), batch=4), tolerance=1e-5)


def test_cnn_gradients() -> None:
    assert_traced_equal(
        *models.loss_and_grads("cnn", batch=2, image=8, channels=(2, 4, 8)), tolerance=1e-5
    )


def test_tied_embeddings() -> None:
    assert_traced_equal(*models.loss_and_grads("tied", **(GPT | {"layers": 1})))


RANDOM = {
    "bits": lambda key: [
        jax.random.bits(key, (5,), dtype) for dtype in ("uint8", "uint16", "uint32")
    ],
    "uniform": lambda key: jax.random.uniform(key, (3, 5)),
    "normal bfloat16": lambda key: jax.random.normal(key, (7,), jnp.bfloat16),
    "split": lambda key: (lambda a, b: (jax.random.normal(a, (4,)), b))(*jax.random.split(key)),
    "split shape": lambda key: jax.random.split(key, (2, 3)),
    "index": lambda key: jax.random.split(key, (2, 3))[1, 2],
    "gather": lambda key: jax.random.split(key, 4)[jnp.array([3, 1])],
    "gather filled": lambda key: jnp.take(jax.random.split(key, 4), jnp.array([3, 9]), mode="fill"),
    "dynamic index": lambda key: jax.random.split(key, 4)[jax.random.randint(key, (), 0, 4)],
    "fold in": lambda key: jax.random.fold_in(key, 7),
    "vmapped fold in": lambda key: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(3)),
    "fold in keys": lambda key: jax.vmap(jax.random.fold_in, (0, None))(
        jax.random.split(key, 3), 5
    ),
    "vmapped bits": lambda key: jax.vmap(lambda k: jax.random.normal(k, (2,)))(
        jax.random.split(key, 3)
    ),
    "select": lambda key: jnp.where(jnp.array([True, False]), *jax.random.split(key, (2, 2))),
    "reshape": lambda key: jax.random.split(key, (2, 3)).reshape(3, 2).T,
    "concatenate": lambda key: jnp.concatenate(
        [jax.random.split(key, 2), jax.random.split(key, 3)]
    ),
    "stack": lambda key: jnp.stack([key, jax.random.fold_in(key, 1)]),
    "update": lambda key: jax.random.split(key, 3).at[1].set(key),
    "compare": lambda key: (jax.random.split(key, 3) == key, jax.random.split(key, 3)[0] != key),
    "permutation": lambda key: jax.random.permutation(key, 6),
    "choice": lambda key: jax.random.choice(key, 10, (3,)),
    "clone": lambda key: jax.random.clone(key),
    "unwrap": lambda key: jax.random.key_data(jax.random.split(key)),
    "seed": lambda key: (jax.random.key(3), jax.random.bits(key)),
    "barrier": lambda key: jax.lax.optimization_barrier((key, jnp.ones(2))),
    "gamma": lambda key: jax.random.gamma(key, 2.0, (3,)),
    "scan": lambda key: jax.lax.scan(
        lambda c, k: (c + jax.random.normal(k), c), 0.0, jax.random.split(key, 3)
    ),
    "carried key": lambda key: jax.lax.fori_loop(0, 3, lambda _, k: jax.random.fold_in(k, 1), key),
    "branch": lambda key: jax.lax.cond(
        jax.random.bernoulli(key), lambda k: k, lambda k: jax.random.clone(k), key
    ),
}


@pytest.mark.quick_share(8)
@pytest.mark.parametrize(
    ("name", "impl"),
    [(name, "threefry2x32") for name in RANDOM]
    + [
        (name, "rbg")
        for name in (
            "bits",
            "fold in keys",
            "gather",
            "scan",
            "seed",
            "select",
            "split",
            "vmapped bits",
        )
    ],
)
def test_random_numbers_and_key_arrays_are_bit_for_bit_the_same(name: str, impl: str) -> None:
    key = jax.random.key(11, impl=impl)
    assert_traced_equal(RANDOM[name], (key,), tolerance=0.0)


def test_keys_never_appear_in_the_graph() -> None:
    key = jax.random.key(0)
    for function in RANDOM.values():
        graph = trace(function, (key,)).graph
        dtypes = {tensor.dtype for op in graph.ops for tensor in (*op.ins, *op.outs)}
        assert not any("key" in dtype for dtype in dtypes)


def test_a_draw_is_elementwise_on_counters() -> None:
    graph = trace(lambda key: jax.random.bits(key, (8,)), (jax.random.key(0),)).graph
    kinds = [op.kind for op in graph.ops]
    assert {"iota_2x32_shape", "threefry2x32", "xor"} <= set(kinds)
    assert not any(kind.startswith("random_") for kind in kinds)


@jax.custom_vjp
def clipped(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


clipped.defvjp(lambda x: (clipped(x), x), lambda x, g: (jnp.clip(g, -1, 1) * jnp.cos(x),))

FUNCTIONS = {
    "custom derivatives": lambda x: (
        clipped(x),
        jax.nn.relu(x),
        jax.grad(lambda y: clipped(y).sum())(x),
    ),
    "jit": lambda x: jax.jit(jax.jit(jnp.tanh))(x),
    "scan": lambda x: jax.lax.scan(lambda c, row: (c + row, c * row), x[0], x),
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "while": lambda x: jax.lax.while_loop(lambda y: y.sum() < 100, lambda y: 2 * y + 1, x),
    "sort": lambda x: jnp.sort(x, axis=0),
    "linalg": lambda x: jnp.linalg.cholesky(x @ x.T + 4 * jnp.eye(4)),
    "pass through": lambda x: (x, x, 3.0, jnp.zeros(())),
    "copy": lambda x: (jnp.array(x, copy=True), jax.lax.stop_gradient(x) + 1, jax.device_put(x)),
    "low precision": lambda x: x.astype(jnp.bfloat16) * 3 + jnp.bfloat16(0.1),
    "callback": lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    "vmapped": lambda x: jax.vmap(lambda row: jax.lax.psum(row, "i"), axis_name="i")(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    assert_traced_equal(FUNCTIONS[name], (x,))


def test_the_evaluator_notices_a_changed_graph() -> None:
    right = trace(lambda x: x + 1, (jnp.ones(3),))
    wrong = trace(lambda x: x + 2, (jnp.ones(3),))
    with pytest.raises(AssertionError):
        assert_same(as_function(right)(jnp.ones(3)), as_function(wrong)(jnp.ones(3)), 1e-6)
