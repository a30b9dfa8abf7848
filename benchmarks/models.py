"""The models that are measured: training steps in plain JAX, and the same with shardings written by hand.

Where `drawn=False` is asked for, they are in shape only, however large.

A loss takes `split(x, *axes)`, which does nothing in the plain step and constrains x's sharding in the other; nothing
else differs. Mesh axes of the hand-written steps: "data" for the batch, "model" for columns and rows of the kernels.
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
from jax.sharding import PartitionSpec as P

Tree = Any
Split = Callable[..., jax.Array]
Step = Callable[..., tuple[Tree, jax.Array]]
Update = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


@dataclass(frozen=True)
class Model:
    """A model to train.

    `loss(params, key, split, *batch)`; `spec(path, array)` is the hand-written PartitionSpec of a parameter, of which
    `path` holds the keys; `optimiser` names one of OPTIMISERS.
    """

    name: str
    size: str
    loss: Callable[..., jax.Array]
    params: Tree
    batch: tuple[np.ndarray, ...]
    spec: Callable[[tuple[str, ...], Any], P]
    optimiser: str

    @property
    def state(self) -> Tree:
        """The state to start from."""
        opt = OPTIMISERS[self.optimiser][0](self.params)
        return {"params": self.params, "opt": opt, "key": np.array([0, 42], np.uint32)}

    def state_specs(self) -> Tree:
        """The hand-written PartitionSpec of every part of the state; moments lie as their parameters do."""

        def spec(path: tuple[Any, ...], leaf: Any) -> P:
            keys = tuple(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
            return self.spec(keys, leaf) if np.ndim(leaf) and keys[0] != "key" else P()

        return jax.tree_util.tree_map_with_path(spec, self.state)

    def step(self, split: Split = lambda x, *_: x) -> Step:
        """The training step, taking (state, *batch) and giving (state, loss); a new function, unknown to any cache."""
        update = OPTIMISERS[self.optimiser][1]

        def step(state: Tree, *batch: Any) -> tuple[Tree, jax.Array]:
            following, key = jax.random.split(state["key"])
            loss, grads = jax.value_and_grad(self.loss)(state["params"], key, split, *batch)
            params, opt = update(state["params"], grads, state["opt"])
            return {"params": params, "opt": opt, "key": following}, loss

        return step


# Perceptron -----------------------------------------------------------------------------------------------------------


def mlp(
    widths: tuple[int, ...] = (1024, 2048, 2048, 1024), batch: int = 512, *, drawn: bool = True
) -> Model:
    """Dense layers with relu and cross-entropy, SGD. By hand: columns and rows in turn."""
    draw = generator(drawn)
    params = [dense_init(draw, m, n) for m, n in pairwise(widths)]
    data = (
        normal(draw, (batch, widths[0]), 1.0),
        draw.integers(widths[-1], size=batch).astype(np.int32),
    )

    def loss(
        params: Tree, _key: jax.Array, split: Split, x: jax.Array, labels: jax.Array
    ) -> jax.Array:
        for n, layer in enumerate(params):
            x = split(dense(layer, x), "data", *(() if n % 2 else ("model",)))
            x = jax.nn.relu(x) if n < len(params) - 1 else x
        return cross_entropy(x, labels)

    def spec(path: tuple[str, ...], array: Any) -> P:
        return _columns(array) if int(path[-2]) % 2 == 0 else _rows(array)

    size = f"{'-'.join(map(str, widths))}, batch {batch}, SGD"
    return Model("MLP", size, loss, params, data, spec, "sgd")


# Transformer ----------------------------------------------------------------------------------------------------------


def gpt(
    layers: int = 3,
    width: int = 256,
    heads: int = 8,
    vocab: int = 1024,
    sequence: int = 128,
    batch: int = 16,
    *,
    rate: float = 0.1,
    drawn: bool = True,
) -> Model:
    """Causal pre-norm decoder with dropout at `rate`, Adam. By hand: Megatron's columns and rows, vocabulary and heads
    split.
    """
    draw = generator(drawn)
    params = {
        "tokens": normal(draw, (vocab, width), 0.02),
        "positions": normal(draw, (sequence, width), 0.02),
        "blocks": [block_init(draw, width) for _ in range(layers)],
        "norm": norm_init(width),
        "head": normal(draw, (width, vocab), width**-0.5),
    }
    text = draw.integers(vocab, size=(batch, sequence + 1)).astype(np.int32)

    def loss(
        params: Tree, key: jax.Array, split: Split, tokens: jax.Array, targets: jax.Array
    ) -> jax.Array:
        x = split(params["tokens"][tokens] + params["positions"], "data")
        for block, block_key in zip(params["blocks"], jax.random.split(key, layers), strict=True):
            x = gpt_block(block, x, block_key, heads, split, rate)
        logits = split(layer_norm(params["norm"], x) @ params["head"], "data", None, "model")
        return cross_entropy(logits, targets)

    def spec(path: tuple[str, ...], array: Any) -> P:
        if path[-1] == "tokens":
            return P("model", None)
        if path[-1] == "head" or path[-2] in ("query", "key", "value", "fc1"):
            return _columns(array)
        return _rows(array) if path[-2] in ("out", "fc2") else P()

    dropout = "dropout" if rate else "no dropout"
    size = f"{layers} layers, width {width}, {sequence} tokens, vocabulary {vocab}, batch {batch}, {dropout}, Adam"
    return Model("GPT", size, loss, params, (text[:, :-1], text[:, 1:]), spec, "adam")


def gpt_block(
    p: Tree, x: jax.Array, key: jax.Array, heads: int, split: Split, rate: float = 0.1
) -> jax.Array:
    """Attention, then a perceptron, on x[batch, position, width]: a norm before each, a residual around it."""
    keys = jax.random.split(key, 3)
    normed = layer_norm(p["norm1"], x)
    q, k, v = (
        split(dense(p[name], normed), "data", None, "model") for name in ("query", "key", "value")
    )
    mixed = split(attention(q, k, v, keys[0], heads, rate), "data", None, "model")
    x = x + drop(split(dense(p["out"], mixed), "data"), keys[1], rate)
    hidden = split(jax.nn.gelu(dense(p["fc1"], layer_norm(p["norm2"], x))), "data", None, "model")
    return x + drop(split(dense(p["fc2"], hidden), "data"), keys[2], rate)


def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, key: jax.Array, heads: int, rate: float = 0.1
) -> jax.Array:
    """Causal attention on [batch, position, heads * head width]."""
    q, k, v = (x.reshape(*x.shape[:2], heads, -1) for x in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = drop(jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1), key, rate)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*q.shape[:2], -1)


def block_init(draw: Draw, width: int) -> Tree:
    """One block's parameters."""
    shapes = dict.fromkeys(("query", "key", "value", "out"), (width, width))
    shapes |= {"fc1": (width, 4 * width), "fc2": (4 * width, width)}
    kernels = {name: dense_init(draw, m, n) for name, (m, n) in shapes.items()}
    return {**kernels, "norm1": norm_init(width), "norm2": norm_init(width)}


# Convolutions ---------------------------------------------------------------------------------------------------------


def cnn(
    channels: tuple[int, ...] = (8, 64, 128, 128),
    classes: int = 128,
    image: int = 32,
    batch: int = 64,
    *,
    drawn: bool = True,
) -> Model:
    """Convolutions with batch norm, relu and pooling, a dense head, momentum. By hand: channels out and in, in turn."""
    draw = generator(drawn)
    convs = [
        {"kernel": normal(draw, (3, 3, m, n), (9 * m) ** -0.5), **norm_init(n)}
        for m, n in pairwise(channels)
    ]
    side = image // 2 ** len(convs)
    params = {"convs": convs, "head": dense_init(draw, side * side * channels[-1], classes)}
    images = normal(draw, (batch, image, image, channels[0]), 1.0)
    labels = draw.integers(classes, size=batch).astype(np.int32)

    def loss(
        params: Tree, _key: jax.Array, split: Split, x: jax.Array, labels: jax.Array
    ) -> jax.Array:
        for n, layer in enumerate(params["convs"]):
            x = conv(x, layer["kernel"])
            x = split(x, "data", None, None, *(() if n % 2 else ("model",)))
            x = max_pool(jax.nn.relu(batch_norm(layer, x)))
        return cross_entropy(dense(params["head"], x.reshape(x.shape[0], -1)), labels)

    def spec(path: tuple[str, ...], array: Any) -> P:
        if "convs" not in path:
            return P()
        if int(path[-2]) % 2 == 0:
            return _columns(array)
        return _rows(array)

    size = (
        f"channels {'-'.join(map(str, channels))}, {image}x{image} pixels, batch {batch}, momentum"
    )
    return Model("CNN", size, loss, params, (images, labels), spec, "momentum")


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """x[n, h, w, in] with kernel[h, w, in, out], as large as before over `stride`."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)


def batch_norm(p: Tree, x: jax.Array) -> jax.Array:
    """Brings every channel of the batch to mean 0 and variance 1, then scales and shifts it."""
    mean = x.mean((0, 1, 2))
    variance = (x * x).mean((0, 1, 2)) - mean * mean
    return (x - mean) * lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def max_pool(x: jax.Array) -> jax.Array:
    """The largest of every 2x2 pixels."""
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


# Parts ----------------------------------------------------------------------------------------------------------------


def _columns(array: Any) -> P:
    """The last dim on the model axis."""
    return P(*[None] * (array.ndim - 1), "model")


def _rows(array: Any) -> P:
    """The last but one dim on the model axis; vectors whole."""
    return P(*[None] * (array.ndim - 2), "model", None) if array.ndim > 1 else P()


class Undrawn:
    """In place of a generator where shapes are enough."""

    def integers(self, _high: int, size: Any) -> np.ndarray:
        """Zeros."""
        return np.zeros(size, np.int64)


Draw = np.random.Generator | Undrawn


def generator(drawn: bool) -> Draw:
    """What parameters and batches are drawn from; in shape only if not `drawn`."""
    return np.random.default_rng(0) if drawn else Undrawn()


def normal(draw: Draw, shape: tuple[int, ...], scale: float) -> Any:
    """Normal values of standard deviation `scale`; their shape where nothing is drawn."""
    if isinstance(draw, Undrawn):
        return jax.ShapeDtypeStruct(shape, np.float32)
    return (scale * draw.normal(size=shape)).astype(np.float32)


def dense_init(draw: Draw, m: int, n: int) -> Tree:
    """A kernel [m, n] and a bias."""
    return {"kernel": normal(draw, (m, n), m**-0.5), "bias": np.zeros(n, np.float32)}


def dense(p: Tree, x: jax.Array) -> jax.Array:
    """Returns x @ kernel + bias."""
    return x @ p["kernel"] + p["bias"]


def norm_init(width: int) -> Tree:
    """A norm that changes nothing yet."""
    return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}


def layer_norm(p: Tree, x: jax.Array) -> jax.Array:
    """Brings x to mean 0 and variance 1 over the last dim, then scales and shifts it."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def drop(x: jax.Array, key: jax.Array, rate: float = 0.1) -> jax.Array:
    """Sets a part `rate` of x to 0 and scales the rest up; draws nothing where that is no part."""
    if not rate:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean negative log-likelihood of the labels."""
    target = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(logits), axis=-1))


# Optimisers -----------------------------------------------------------------------------------------------------------


def sgd(params: Tree, grads: Tree, opt: Tree) -> tuple[Tree, Tree]:
    """Plain gradient descent."""
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), opt


def momentum(params: Tree, grads: Tree, opt: Tree) -> tuple[Tree, Tree]:
    """Gradient descent with a velocity."""
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, opt["velocity"], grads)
    return jax.tree.map(lambda p, v: p - 0.01 * v, params, velocity), {"velocity": velocity}


def adam(params: Tree, grads: Tree, opt: Tree) -> tuple[Tree, Tree]:
    """Adam with bias correction (Kingma and Ba 2015)."""
    count = opt["count"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, opt["m"], grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, opt["v"], grads)
    scale = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, v: p - scale * m / (jnp.sqrt(v) + 1e-8), params, m, v)
    return params, {"m": m, "v": v, "count": count}


def _zeros(params: Tree) -> Tree:
    """Moments to start from; of parameters in shape only in shape only."""

    def zeros(p: Any) -> Any:
        return p if isinstance(p, jax.ShapeDtypeStruct) else np.zeros(p.shape, p.dtype)

    return jax.tree.map(zeros, params)


OPTIMISERS: dict[str, tuple[Callable[[Tree], Tree], Update]] = {
    "sgd": (lambda _: {}, sgd),
    "momentum": (lambda params: {"velocity": _zeros(params)}, momentum),
    "adam": (
        lambda params: {"m": _zeros(params), "v": _zeros(params), "count": np.zeros((), np.int32)},
        adam,
    ),
}

MODELS: dict[str, Callable[[], Model]] = {"mlp": mlp, "gpt": gpt, "cnn": cnn}
