"""A GPT of 4 layers on the text of Python's own manual, in plain JAX: nothing here knows of devices or shardings.

    python examples/gpt_text.py                                             # trains it on one device
    autopar report examples/gpt_text.py:training_step --cluster 8xh100      # how to split it

Tokens are bytes; the text is `pydoc_data.topics`, which ships with Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Batch = tuple[np.ndarray, np.ndarray]
State = dict[str, Any]

VOCABULARY = 256
LAYERS = 4
WIDTH = 64
HEADS = 8
SEQUENCE = 64
BATCH = 16
STEPS = 100
TEST_BYTES = 16_384  # the end of the text, not trained on
DROPOUT = 0.1
LEARNING_RATE, BETA1, BETA2, EPSILON = 3e-3, 0.9, 0.99, 1e-8


def training_step() -> tuple[Any, tuple[Any, ...]]:
    """The step, and arguments to plan it with: an initial state, and the shapes of a batch."""
    tokens = jax.ShapeDtypeStruct((BATCH, SEQUENCE), np.int32)
    return step, (initial_state(), tokens, tokens)


def step(state: State, tokens: jax.Array, targets: jax.Array) -> tuple[State, jax.Array]:
    """One step of Adam: state, tokens[batch, position], targets (the tokens that follow) -> new state, loss."""
    next_key, key = jax.random.split(state["key"])
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], key, tokens, targets)
    params, opt = adam(state["params"], grads, state["opt"])
    return {"params": params, "opt": opt, "key": next_key}, loss


def loss_fn(params: Any, key: jax.Array, tokens: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross-entropy of the next byte."""
    log_probability = jax.nn.log_softmax(predict(params, key, tokens))
    return -jnp.take_along_axis(log_probability, targets[..., None], axis=-1).mean()


def predict(params: Any, key: jax.Array | None, tokens: jax.Array) -> jax.Array:
    """Logits[batch, position, vocabulary] of the next byte; dropout unless `key` is None."""
    keys = [None] * LAYERS if key is None else jax.random.split(key, LAYERS)
    x = params["tokens"][tokens] + params["positions"]
    for n, block in enumerate(params["blocks"]):
        x = transformer_block(block, x, keys[n])
    return layer_norm(params["norm"], x) @ params["head"]


def transformer_block(p: Any, x: jax.Array, key: jax.Array | None) -> jax.Array:
    """Attention, then a perceptron, on x[batch, position, width]: a norm before each, a residual around it."""
    keys = [None] * 2 if key is None else jax.random.split(key)
    x = x + dropout(keys[0], attention(p, layer_norm(p["norm1"], x)))
    hidden = jax.nn.gelu(dense(p["fc1"], layer_norm(p["norm2"], x)))
    return x + dropout(keys[1], dense(p["fc2"], hidden))


def attention(p: Any, x: jax.Array) -> jax.Array:
    """Causal attention with HEADS heads."""
    q, k, v = (
        dense(p[name], x).reshape(*x.shape[:2], HEADS, -1) for name in ("query", "key", "value")
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return dense(p["out"], jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))


def dense(p: Any, x: jax.Array) -> jax.Array:
    """Returns x[..., m] @ w[m, n] + b[n]."""
    return x @ p["w"] + p["b"]


def layer_norm(p: Any, x: jax.Array) -> jax.Array:
    """Brings x to mean 0 and variance 1 over the last dim, then scales and shifts it."""
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["scale"]
        + p["shift"]
    )


def dropout(key: jax.Array | None, x: jax.Array) -> jax.Array:
    """Sets a DROPOUT part of x to 0 and scales the rest up; without a key, leaves x as it is."""
    if key is None:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - DROPOUT, x.shape), x / (1 - DROPOUT), 0)


def adam(params: Any, grads: Any, opt: Any) -> tuple[Any, Any]:
    """Adam with bias correction (Kingma and Ba 2015): new parameters and new moments."""
    count = opt["count"] + 1
    m = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, opt["m"], grads)
    v = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, opt["v"], grads)
    scale = LEARNING_RATE * jnp.sqrt(1 - BETA2**count) / (1 - BETA1**count)
    params = jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + EPSILON), params, m, v)
    return params, {"m": m, "v": v, "count": count}


def initial_state(seed: int = 0) -> State:
    """Random parameters, Adam's moments and the key of the dropout."""
    draw = np.random.default_rng(seed)
    params = {
        "tokens": normal(draw, 0.02, VOCABULARY, WIDTH),
        "positions": normal(draw, 0.02, SEQUENCE, WIDTH),
        "blocks": [block_parameters(draw) for _ in range(LAYERS)],
        "norm": norm_parameters(),
        "head": normal(draw, WIDTH**-0.5, WIDTH, VOCABULARY),
    }
    zeros = jax.tree.map(np.zeros_like, params)
    return {
        "params": params,
        "opt": {"m": zeros, "v": zeros, "count": np.zeros((), np.int32)},
        "key": jax.random.key(seed),
    }


def block_parameters(draw: np.random.Generator) -> Any:
    """One block's parameters."""
    kernels = dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH))
    kernels |= {"fc1": (WIDTH, 4 * WIDTH), "fc2": (4 * WIDTH, WIDTH)}
    dense = {
        name: {"w": normal(draw, m**-0.5, m, n), "b": np.zeros(n, np.float32)}
        for name, (m, n) in kernels.items()
    }
    return {**dense, "norm1": norm_parameters(), "norm2": norm_parameters()}


def norm_parameters() -> Any:
    """A norm that changes nothing yet."""
    return {"scale": np.ones(WIDTH, np.float32), "shift": np.zeros(WIDTH, np.float32)}


def normal(draw: np.random.Generator, scale: float, *shape: int) -> np.ndarray:
    """Normal values of standard deviation `scale`."""
    return (scale * draw.normal(size=shape)).astype(np.float32)


@cache
def text() -> np.ndarray:
    """The manual as bytes."""
    from pydoc_data.topics import topics

    return np.frombuffer("\n".join(topics.values()).encode(), np.uint8)


def batches(steps: int = STEPS, seed: int = 0) -> Iterator[Batch]:
    """Random windows of the training text, and the same windows one byte further."""
    training = text()[:-TEST_BYTES]
    draw = np.random.default_rng(seed)
    for _ in range(steps):
        yield windows(training, draw.integers(len(training) - SEQUENCE, size=BATCH))


def windows(source: np.ndarray, starts: np.ndarray) -> Batch:
    """The windows of `source` from `starts`, and what follows each of their bytes."""
    taken = source[starts[:, None] + np.arange(SEQUENCE + 1)].astype(np.int32)
    return taken[:, :-1], taken[:, 1:]


def accuracy(params: Any) -> float:
    """The part of the test text's bytes that the model, without dropout, holds for the likeliest."""
    tokens, targets = windows(text()[-TEST_BYTES:], np.arange(0, TEST_BYTES - SEQUENCE, SEQUENCE))
    return float(np.mean(np.argmax(predict(params, None, tokens), axis=-1) == targets))


def main() -> None:
    """Trains on one device and prints the loss, then the accuracy."""
    run, (state, *_) = jax.jit(step), training_step()[1]
    for n, (tokens, targets) in enumerate(batches(), start=1):
        state, loss = run(state, tokens, targets)
        if n == 1 or n % 10 == 0:
            print(f"step {n:3}  loss {float(loss):.4f}")
    print(f"accuracy on text not trained on: {accuracy(state['params']):.3f}")


if __name__ == "__main__":
    main()
