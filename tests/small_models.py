"""Small training steps in plain JAX, as the equivalence tests compile them.

    step, args = gpt(dtype="float64", optimiser="adam")
    state, loss = step(*args)                # args = (state, *batch)

    fn, args = loss_and_grads("gpt", dtype="float64")
    loss, grads = fn(*args)                  # the same loss: for comparing gradients and not Adam's first step

The state is {"params": ..., "opt": ...} and, where something is random, "key". Dims that a mesh should be able to
split divide by 8. All values are seeded numpy arrays: with `dtype="float64"` enable x64 before calling a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Tree = Any
Step = Callable[..., tuple[Tree, jax.Array]]
Args = tuple[Tree, ...]


@dataclass(frozen=True)
class Model:
    """What a training step is made of: loss(params, key, *batch), initial parameters, one batch, a key or None."""

    loss: Callable[..., jax.Array]
    params: Tree
    batch: tuple[np.ndarray, ...]
    key: Any = None

    @property
    def state(self) -> dict[str, Tree]:
        return {"params": self.params} | ({} if self.key is None else {"key": self.key})


# The steps ------------------------------------------------------------------------------------------------------------


def mlp(dtype: str = "float32", optimiser: str = "sgd", **sizes: Any) -> tuple[Step, Args]:
    """A classifier of dense layers with bias, relu and softmax cross-entropy. Sizes: see `mlp_model`."""
    return training_step(mlp_model(dtype, **sizes), optimiser)


def gpt(dtype: str = "float32", optimiser: str = "sgd", **sizes: Any) -> tuple[Step, Args]:
    """A causal transformer on tokens, with dropout. Sizes: see `gpt_model`."""
    return training_step(gpt_model(dtype, **sizes), optimiser)


def tied(dtype: str = "float32", optimiser: str = "sgd", **sizes: Any) -> tuple[Step, Args]:
    """`gpt` whose output projection is the token embedding."""
    return training_step(gpt_model(dtype, tie_embeddings=True, **sizes), optimiser)


def cnn(dtype: str = "float32", optimiser: str = "momentum", **sizes: Any) -> tuple[Step, Args]:
    """Convolutions with batch norm, max and average pooling, and a dense head. Sizes: see `cnn_model`."""
    return training_step(cnn_model(dtype, **sizes), optimiser)


def bert(dtype: str = "float32", optimiser: str = "adam", **sizes: Any) -> tuple[Step, Args]:
    """Transformer layers on given hidden states, squared error. Sizes: see `bert_model`."""
    return training_step(bert_model(dtype, **sizes), optimiser)


def loss_and_grads(
    name: str, dtype: str = "float32", **sizes: Any
) -> tuple[Callable[..., Any], Args]:
    """The model `name` of MODELS as fn(state, *batch) -> (loss, gradients), with example arguments."""
    model = MODELS[name](dtype, **sizes)

    def fn(state: Tree, *batch: Any) -> tuple[jax.Array, Tree]:
        return jax.value_and_grad(model.loss)(state["params"], state.get("key"), *batch)

    return fn, (model.state, *model.batch)


def training_step(model: Model, optimiser: str) -> tuple[Step, Args]:
    """`model` with `optimiser` ("sgd", "momentum" or "adam") as step(state, *batch) -> (new state, loss)."""
    initial, update = OPTIMISERS[optimiser]

    def step(state: Tree, *batch: Any) -> tuple[Tree, jax.Array]:
        key = None
        rest = {}
        if "key" in state:
            rest["key"], key = jax.random.split(state["key"])
        loss, grads = jax.value_and_grad(model.loss)(state["params"], key, *batch)
        params, opt = update(state["params"], grads, state["opt"])
        return {"params": params, "opt": opt, **rest}, loss

    return step, (model.state | {"opt": initial(model.params)}, *model.batch)


# Models ---------------------------------------------------------------------------------------------------------------


def mlp_model(
    dtype: str = "float32", *, widths: tuple[int, ...] = (64, 128, 128, 16), batch: int = 32
) -> Model:
    """Dense layers `widths`; the last width is the number of classes. Images [batch, widths[0]], labels [batch]."""
    draw = np.random.default_rng(0)
    params = [dense_init(draw, m, n, dtype) for m, n in pairwise(widths)]
    images = draw.normal(size=(batch, widths[0])).astype(dtype)
    labels = draw.integers(widths[-1], size=batch).astype(np.int32)
    return Model(mlp_loss, params, (images, labels))


def mlp_loss(params: Tree, _key: None, images: jax.Array, labels: jax.Array) -> jax.Array:
    x = images
    for layer in params[:-1]:
        x = jax.nn.relu(dense(layer, x))
    return one_hot_cross_entropy(dense(params[-1], x), labels)


def gpt_model(
    dtype: str = "float32",
    *,
    layers: int = 2,
    width: int = 64,
    heads: int = 8,
    vocab: int = 64,
    sequence: int = 16,
    batch: int = 8,
    dropout: float = 0.1,
    tie_embeddings: bool = False,
    remat: bool = False,
    typed_key: bool = False,
) -> Model:
    """Pre-norm decoder on tokens [batch, sequence].

    `remat` rematerialises every block, `dropout=0` leaves randomness and the key out, `typed_key` makes the key
    one of jax.random.key instead of uint32[2].
    """
    draw = np.random.default_rng(0)
    params = {
        "tokens": normal(draw, (vocab, width), 0.02, dtype),
        "positions": normal(draw, (sequence, width), 0.02, dtype),
        "blocks": [block_init(draw, width, dtype) for _ in range(layers)],
        "norm": norm_init(width, dtype),
    }
    if not tie_embeddings:
        params["head"] = normal(draw, (width, vocab), width**-0.5, dtype)
    text = draw.integers(vocab, size=(batch, sequence + 1)).astype(np.int32)

    def loss(
        params: Tree, key: jax.Array | None, tokens: jax.Array, targets: jax.Array
    ) -> jax.Array:
        run = jax.checkpoint(gpt_block, static_argnums=(3, 4)) if remat else gpt_block
        x = params["tokens"][tokens] + params["positions"]
        for n, block in enumerate(params["blocks"]):
            x = run(block, x, None if key is None else jax.random.fold_in(key, n), heads, dropout)
        head = params["tokens"].T if tie_embeddings else params["head"]
        return cross_entropy(layer_norm(params["norm"], x) @ head, targets)

    return Model(loss, params, (text[:, :-1], text[:, 1:]), new_key(typed_key) if dropout else None)


def gpt_block(p: Tree, x: jax.Array, key: jax.Array | None, heads: int, rate: float) -> jax.Array:
    keys = [None] * 3 if key is None else jax.random.split(key, 3)
    normed = layer_norm(p["norm1"], x)
    q, k, v = (split_heads(dense(p[name], normed), heads) for name in ("query", "key", "value"))
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    x = x + drop(dense(p["out"], attention(q, k, v, causal, keys[0], rate)), keys[1], rate)
    hidden = jax.nn.gelu(dense(p["fc1"], layer_norm(p["norm2"], x)))
    return x + drop(dense(p["fc2"], hidden), keys[2], rate)


def block_init(draw: np.random.Generator, width: int, dtype: str) -> Tree:
    return {
        **{
            name: dense_init(draw, width, width, dtype) for name in ("query", "key", "value", "out")
        },
        "fc1": dense_init(draw, width, 4 * width, dtype),
        "fc2": dense_init(draw, 4 * width, width, dtype),
        "norm1": norm_init(width, dtype),
        "norm2": norm_init(width, dtype),
    }


def bert_model(
    dtype: str = "float32",
    *,
    layers: int = 2,
    width: int = 128,
    heads: int = 8,
    sequence: int = 8,
    batch: int = 8,
    dropout: float = 0.1,
) -> Model:
    """Post-norm encoder layers on hidden states [batch, sequence, width], with a fused query-key-value kernel.

    The target is another hidden state; the loss is the mean squared error.
    """
    draw = np.random.default_rng(0)
    params = [bert_layer_init(draw, width, dtype) for _ in range(layers)]
    hidden, target = (draw.normal(size=(batch, sequence, width)).astype(dtype) for _ in range(2))
    mask = np.arange(sequence) < draw.integers(sequence // 2, sequence + 1, size=(batch, 1))

    def loss(
        params: Tree, key: jax.Array | None, x: jax.Array, mask: jax.Array, target: jax.Array
    ) -> jax.Array:
        for n, layer in enumerate(params):
            x = bert_layer(
                layer, x, mask, None if key is None else jax.random.fold_in(key, n), heads, dropout
            )
        return jnp.mean((x - target) ** 2)

    return Model(
        loss, params, (hidden, mask.astype(np.int32), target), new_key() if dropout else None
    )


def bert_layer(
    p: Tree, x: jax.Array, mask: jax.Array, key: jax.Array | None, heads: int, rate: float
) -> jax.Array:
    keys = [None] * 3 if key is None else jax.random.split(key, 3)
    qkv = dense(p["qkv"], x).reshape(*x.shape, 3)
    q, k, v = (split_heads(part, heads) for part in jnp.split(qkv, 3, axis=-1))
    mixed = attention(q, k, v, mask[:, None, None, :] > 0, keys[0], rate)
    x = layer_norm(p["norm1"], x + drop(dense(p["out"], mixed), keys[1], rate))
    hidden = jax.nn.gelu(dense(p["fc1"], x), approximate=False)
    return layer_norm(p["norm2"], x + drop(dense(p["fc2"], hidden), keys[2], rate))


def bert_layer_init(draw: np.random.Generator, width: int, dtype: str) -> Tree:
    return {
        "qkv": dense_init(draw, width, 3 * width, dtype),
        "out": dense_init(draw, width, width, dtype),
        "fc1": dense_init(draw, width, 4 * width, dtype),
        "fc2": dense_init(draw, 4 * width, width, dtype),
        "norm1": norm_init(width, dtype),
        "norm2": norm_init(width, dtype),
    }


def cnn_model(
    dtype: str = "float32",
    *,
    channels: tuple[int, ...] = (8, 16, 32),
    classes: int = 16,
    image: int = 16,
    batch: int = 16,
) -> Model:
    """Images [batch, image, image, channels[0]]: a convolution of stride 2 with max pooling, then ones of stride 1
    with average pooling; a dense head. `image` halves at each of these."""
    draw = np.random.default_rng(0)
    convs = [conv_init(draw, m, n, dtype) for m, n in pairwise(channels)]
    side = image // 2 ** len(channels)
    params = {"convs": convs, "head": dense_init(draw, side * side * channels[-1], classes, dtype)}
    images = draw.normal(size=(batch, image, image, channels[0])).astype(dtype)
    labels = draw.integers(classes, size=batch).astype(np.int32)
    return Model(cnn_loss, params, (images, labels))


def cnn_loss(params: Tree, _key: None, images: jax.Array, labels: jax.Array) -> jax.Array:
    first, *others = params["convs"]
    x = max_pool(jax.nn.relu(batch_norm(first, conv(first["kernel"], images, stride=2))))
    for layer in others:
        x = average_pool(jax.nn.relu(batch_norm(layer, conv(layer["kernel"], x, stride=1))))
    return one_hot_cross_entropy(dense(params["head"], x.reshape(x.shape[0], -1)), labels)


def conv_init(draw: np.random.Generator, m: int, n: int, dtype: str) -> Tree:
    return {"kernel": normal(draw, (3, 3, m, n), (9 * m) ** -0.5, dtype), **norm_init(n, dtype)}


# Layers ---------------------------------------------------------------------------------------------------------------


def normal(
    draw: np.random.Generator, shape: tuple[int, ...], scale: float, dtype: str
) -> np.ndarray:
    return (scale * draw.normal(size=shape)).astype(dtype)


def new_key(typed: bool = False) -> Any:
    return jax.random.key(0) if typed else np.array([0, 42], np.uint32)


def dense_init(draw: np.random.Generator, m: int, n: int, dtype: str) -> Tree:
    return {"kernel": normal(draw, (m, n), m**-0.5, dtype), "bias": normal(draw, (n,), 0.01, dtype)}


def dense(p: Tree, x: jax.Array) -> jax.Array:
    return x @ p["kernel"] + p["bias"]


def norm_init(width: int, dtype: str) -> Tree:
    return {"scale": np.ones(width, dtype), "bias": np.zeros(width, dtype)}


def layer_norm(p: Tree, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def batch_norm(p: Tree, x: jax.Array) -> jax.Array:
    """Statistics of the batch: mean and mean of squares over batch and pixels."""
    mean = x.mean((0, 1, 2))
    variance = (x * x).mean((0, 1, 2)) - mean * mean
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    return x.reshape(x.shape[0], x.shape[1], heads, -1)


def attention(
    q: Any, k: Any, v: Any, mask: jax.Array, key: jax.Array | None, rate: float
) -> jax.Array:
    """q, k, v [batch, sequence, heads, head width]; `mask` broadcasts to [batch, heads, query, key]."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", drop(weights, key, rate), v)
    return mixed.reshape(*mixed.shape[:2], -1)


def drop(x: jax.Array, key: jax.Array | None, rate: float) -> jax.Array:
    if key is None:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def conv(kernel: jax.Array, x: jax.Array, stride: int) -> jax.Array:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=layout)


def max_pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def average_pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def one_hot_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    target = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(logits), axis=-1))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -chosen.mean()


# Optimisers -----------------------------------------------------------------------------------------------------------


def sgd_init(_params: Tree) -> Tree:
    return {}


def sgd(params: Tree, grads: Tree, opt: Tree, lr: float = 0.1) -> tuple[Tree, Tree]:
    return jax.tree.map(lambda p, g: p - lr * g, params, grads), opt


def momentum_init(params: Tree) -> Tree:
    return {"velocity": jax.tree.map(np.zeros_like, params)}


def momentum(
    params: Tree, grads: Tree, opt: Tree, lr: float = 0.1, decay: float = 0.9
) -> tuple[Tree, Tree]:
    velocity = jax.tree.map(lambda v, g: decay * v + g, opt["velocity"], grads)
    return jax.tree.map(lambda p, v: p - lr * v, params, velocity), {"velocity": velocity}


def adam_init(params: Tree) -> Tree:
    zeros = jax.tree.map(np.zeros_like, params)
    return {"m": zeros, "v": zeros, "count": np.zeros((), np.int32)}


def adam(
    params: Tree, grads: Tree, opt: Tree, lr: float = 1e-3, b1: float = 0.9, b2: float = 0.999
) -> tuple[Tree, Tree]:
    count = opt["count"] + 1
    m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, opt["m"], grads)
    v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, opt["v"], grads)

    def move(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        t = count.astype(p.dtype)
        return p - lr * (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + 1e-8)

    return jax.tree.map(move, params, m, v), {"m": m, "v": v, "count": count}


def tied_model(dtype: str = "float32", **sizes: Any) -> Model:
    return gpt_model(dtype, tie_embeddings=True, **sizes)


MODELS: dict[str, Callable[..., Model]] = {
    "mlp": mlp_model,
    "gpt": gpt_model,
    "tied": tied_model,
    "cnn": cnn_model,
    "bert": bert_model,
}
OPTIMISERS = {
    "sgd": (sgd_init, sgd),
    "momentum": (momentum_init, momentum),
    "adam": (adam_init, adam),
}
