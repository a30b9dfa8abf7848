"""Training steps whose memory is measured: of the models here and elsewhere in this folder, in shape only.

Shapes are such that a device holds megabytes; nothing is ever allocated. Every step is `step(*args)`, its first
argument a tree of parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks import models, shapes
from benchmarks.models import adam, attention, conv, cross_entropy, dense, layer_norm
from tests import small_models
from tests.models.table import BY_NAME

Tree = Any
Made = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Measured:
    """A model whose memory is measured: how it is made, whether its first argument is donated, and whether it was
    left out while the account of memory was developed.
    """

    make: Callable[[], Made]
    donates: bool = False
    held_out: bool = False


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """A float32 argument."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """An int32 argument."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def specs(tree: Tree) -> Tree:
    """The arrays of a tree in shape only; what is none stays."""
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype) if hasattr(a, "dtype") else a, tree
    )


def descends(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Gradient descent on `loss(params, *batch)`."""

    def step(params: Tree, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def with_adam(loss: Callable[..., jax.Array], params: Tree, *batch: Any) -> Made:
    """Adam on `loss(params, *batch)`."""

    def step(state: Tree, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state["params"], *batch)
        params, opt = adam(state["params"], grads, state["opt"])
        return {"params": params, "opt": opt}, value

    opt = {"m": params, "v": params, "count": integers()}
    return step, ({"params": params, "opt": opt}, *batch)


def of_benchmark(make: Callable[[], models.Model]) -> Made:
    """A model of `benchmarks.models`."""
    model = make()
    return model.step(), (specs(model.state), *specs(model.batch))


def of_shapes(make: Callable[[], shapes.Shapes]) -> Made:
    """A model of `benchmarks.shapes`."""
    made = make()
    return made.step, made.args


def of_tests(name: str) -> Made:
    """A model of `tests/models`, as small as it is there."""
    fn, args = BY_NAME[name].build()
    return fn, specs(args)


def bert() -> Made:
    """Post-norm encoder of the tests, larger."""
    step, args = small_models.bert(layers=3, width=256, heads=8, sequence=128, batch=16)
    return step, specs(args)


# Convolutions ---------------------------------------------------------------------------------------------------------


def _up(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_transpose(
        x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def unet(c: int = 32) -> Made:
    """Down by a pooling and a stride, up again with what was there before beside it; a class for each pixel."""
    names = {
        "in": (3, 3, 3, c),
        "d1": (3, 3, c, 2 * c),
        "d2": (3, 3, 2 * c, 4 * c),
        "u2": (2, 2, 4 * c, 2 * c),
    }
    names |= {
        "m2": (3, 3, 4 * c, 2 * c),
        "u1": (2, 2, 2 * c, c),
        "m1": (3, 3, 2 * c, c),
        "out": (1, 1, c, 2),
    }

    def loss(p: Tree, x: jax.Array, labels: jax.Array) -> jax.Array:
        a = jax.nn.relu(conv(x, p["in"]))
        b = jax.nn.relu(conv(models.max_pool(a), p["d1"]))
        z = jax.nn.relu(conv(b, p["d2"], 2))
        z = jax.nn.relu(conv(jnp.concatenate([_up(z, p["u2"]), b], -1), p["m2"]))
        z = jax.nn.relu(conv(jnp.concatenate([_up(z, p["u1"]), a], -1), p["m1"]))
        return cross_entropy(conv(z, p["out"]), labels)

    params = {name: floats(*shape) for name, shape in names.items()}
    return descends(loss), (params, floats(16, 64, 96, 3), integers(16, 64, 96))


def resnet(c: int = 64) -> Made:
    """Residual blocks with batch norm, two of them of stride 2; the mean of what is left is classified. Adam."""

    def block(p: Tree, x: jax.Array, stride: int) -> jax.Array:
        y = jax.nn.relu(models.batch_norm(p["n1"], conv(x, p["c1"], stride)))
        y = models.batch_norm(p["n2"], conv(y, p["c2"]))
        return jax.nn.relu(y + (conv(x, p["skip"], stride) if "skip" in p else x))

    def loss(p: Tree, x: jax.Array, labels: jax.Array) -> jax.Array:
        x = conv(x, p["in"])
        for block_params, stride in zip(p["blocks"], (1, 2, 1, 2), strict=True):
            x = block(block_params, x, stride)
        return cross_entropy(dense(p["head"], x.mean((1, 2))), labels)

    def params_of(m: int, n: int) -> Tree:
        norms = {name: {"scale": floats(n), "bias": floats(n)} for name in ("n1", "n2")}
        skip = {"skip": floats(1, 1, m, n)} if m != n else {}
        return {"c1": floats(3, 3, m, n), "c2": floats(3, 3, n, n), **skip, **norms}

    blocks = [params_of(m, n) for m, n in ((c, c), (c, 2 * c), (2 * c, 2 * c), (2 * c, 4 * c))]
    head = {"kernel": floats(4 * c, 128), "bias": floats(128)}
    params = {"in": floats(3, 3, 4, c), "blocks": blocks, "head": head}
    return with_adam(loss, params, floats(32, 32, 32, 4), integers(32))


# Attention ------------------------------------------------------------------------------------------------------------


def _encoder_params(width: int) -> Tree:
    kernels = dict.fromkeys(("query", "key", "value", "out"), (width, width))
    kernels |= {"fc1": (width, 4 * width), "fc2": (4 * width, width)}
    block = {name: {"kernel": floats(m, n), "bias": floats(n)} for name, (m, n) in kernels.items()}
    return block | {
        name: {"scale": floats(width), "bias": floats(width)} for name in ("norm1", "norm2")
    }


def _encoder_block(p: Tree, x: jax.Array, heads: int) -> jax.Array:
    normed = layer_norm(p["norm1"], x)
    q, k, v = (
        dense(p[name], normed).reshape(*x.shape[:2], heads, -1)
        for name in ("query", "key", "value")
    )
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5)
    x = x + dense(p["out"], jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))
    return x + dense(p["fc2"], jax.nn.gelu(dense(p["fc1"], layer_norm(p["norm2"], x))))


def vit(width: int = 256, patch: int = 4) -> Made:
    """Patches of images, three blocks of attention, the mean is classified; Adam."""

    def loss(p: Tree, images: jax.Array, labels: jax.Array) -> jax.Array:
        n, h, w, c = images.shape
        x = images.reshape(n, h // patch, patch, w // patch, patch, c).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(n, -1, patch * patch * c) @ p["patches"] + p["positions"]
        for block in p["blocks"]:
            x = _encoder_block(block, x, 8)
        return cross_entropy(dense(p["head"], x.mean(1)), labels)

    head = {"kernel": floats(width, 128), "bias": floats(128)}
    params = {"patches": floats(patch * patch * 4, width), "positions": floats(64, width)}
    params |= {"blocks": [_encoder_params(width)] * 3, "head": head}
    return with_adam(loss, params, floats(64, 32, 32, 4), integers(64))


def scanned_layers(checkpointed: bool) -> Made:
    """A perceptron of eight layers in a scan, rematerialised or not."""

    def layer(h: jax.Array, w: Tree) -> tuple[jax.Array, None]:
        return jnp.tanh(h @ w["w"] + w["b"]), None

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        h, _ = lax.scan(jax.checkpoint(layer) if checkpointed else layer, x, params)
        return ((h - y) ** 2).mean()

    return descends(loss), (
        {"w": floats(8, 512, 512), "b": floats(8, 512)},
        floats(2048, 512),
        floats(2048, 512),
    )


# Others ---------------------------------------------------------------------------------------------------------------


def lstm(width: int = 256) -> Made:
    """Two LSTM layers over 24 steps, the last state is classified."""

    def layer(p: Tree, xs: jax.Array) -> jax.Array:
        def cell(state: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
            h, c = state
            i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ p["w"] + p["b"], 4, -1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((xs.shape[1], width))
        return lax.scan(cell, (zero, zero), xs)[1]

    def loss(params: Tree, x: jax.Array, labels: jax.Array) -> jax.Array:
        for p in params["layers"]:
            x = layer(p, x)
        return cross_entropy(x[-1] @ params["out"], labels)

    layers = [{"w": floats(2 * width, 4 * width), "b": floats(4 * width)}] * 2
    return descends(loss), (
        {"layers": layers, "out": floats(width, 64)},
        floats(24, 128, width),
        integers(128),
    )


def experts(count: int = 8, width: int = 256) -> Made:
    """Two layers in which each token goes to the best of its experts, dispatched by one-hot products."""

    def layer(p: Tree, x: jax.Array) -> jax.Array:
        gates = jax.nn.softmax(x @ p["router"])
        capacity = 2 * x.shape[0] // count
        chosen = jax.nn.one_hot(gates.argmax(-1), count)
        place = (jnp.cumsum(chosen, 0) - 1) * chosen
        sent = (
            chosen[..., None] * jax.nn.one_hot(place.sum(-1).astype(jnp.int32), capacity)[:, None]
        )
        hidden = jax.nn.silu(
            jnp.einsum("ecd,edf->ecf", jnp.einsum("td,tec->ecd", x, sent), p["up"])
        )
        made = jnp.einsum("ecf,efd->ecd", hidden, p["down"])
        return x + jnp.einsum("ecd,tec->td", made, sent * gates.max(-1)[:, None, None])

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        for p in params:
            x = layer(p, x)
        return ((x - y) ** 2).mean()

    up, down = floats(count, width, 2 * width), floats(count, 2 * width, width)
    params = [{"router": floats(width, count), "up": up, "down": down}] * 2
    return descends(loss), (params, floats(1024, width), floats(1024, width))


def recommender(width: int = 64) -> Made:
    """Rows of four tables beside a perceptron's output, their products classified; Adam."""

    def loss(p: Tree, x: jax.Array, rows: jax.Array, clicked: jax.Array) -> jax.Array:
        found = [table[rows[:, n]] for n, table in enumerate(p["tables"])]
        both = jnp.stack([jax.nn.relu(dense(p["in"], x)), *found], 1)
        products = jnp.einsum("bid,bjd->bij", both, both).reshape(x.shape[0], -1)
        logit = dense(p["out"], jax.nn.relu(dense(p["mid"], products)))[:, 0]
        return jnp.mean(jax.nn.softplus(logit) - clicked * logit)

    sizes = {"in": (32, width), "mid": (25, 512), "out": (512, 1)}
    params = {name: {"kernel": floats(m, n), "bias": floats(n)} for name, (m, n) in sizes.items()}
    params |= {"tables": [floats(rows, width) for rows in (4096, 8192, 16384, 65536)]}
    return with_adam(loss, params, floats(4096, 32), integers(4096, 4), floats(4096))


def state_space(width: int = 128, states: int = 8, length: int = 64) -> Made:
    """A selective state space (Gu and Dao 2023), its recurrence an associative scan."""

    def block(p: Tree, x: jax.Array) -> jax.Array:
        u, gate = jnp.split(x @ p["in"], 2, -1)
        step = jax.nn.softplus(u @ p["step"])
        kept = jnp.exp(-step[..., None] * jnp.exp(p["decay"]))
        added = step[..., None] * (u @ p["b"])[:, :, None] * u[..., None]
        _, h = lax.associative_scan(
            lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (kept, added), axis=1
        )
        return x + (jnp.einsum("bldn,bln->bld", h, u @ p["c"]) * jax.nn.silu(gate)) @ p["out"]

    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        return ((block(params, x) - y) ** 2).mean()

    shapes_of = {
        "in": (width, 2 * width),
        "step": (width, width),
        "decay": (width, states),
        "b": (width, states),
    }
    shapes_of |= {"c": (width, states), "out": (width, width)}
    params = {name: floats(*shape) for name, shape in shapes_of.items()}
    return descends(loss), (params, floats(16, length, width), floats(16, length, width))


def encoder_decoder(width: int = 256) -> Made:
    """An encoder of images' rows and a decoder that attends to it, causal; Adam."""

    def loss(p: Tree, source: jax.Array, text: jax.Array, labels: jax.Array) -> jax.Array:
        x = _encoder_block(p["encoder"], source, 8)
        y = p["tokens"][text]
        normed = layer_norm(p["norm"], y)
        key = jax.random.key(0)
        y = y + dense(p["self"], attention(*(normed @ p[n] for n in ("q1", "k1", "v1")), key, 8))
        y = y + dense(p["cross"], attention(y @ p["q2"], x @ p["k2"], x @ p["v2"], key, 8))
        return cross_entropy(y @ p["tokens"].T, labels)

    params = {name: floats(width, width) for name in ("q1", "k1", "v1", "q2", "k2", "v2")}
    params |= {
        n: {"kernel": floats(width, width), "bias": floats(width)} for n in ("self", "cross")
    }
    params |= {
        "encoder": _encoder_params(width),
        "norm": {"scale": floats(width), "bias": floats(width)},
    }
    params |= {"tokens": floats(1024, width)}
    return with_adam(loss, params, floats(16, 128, width), integers(16, 128), integers(16, 128))


_SMALL_GPT = partial(shapes.gpt, width=256, heads=8, vocab=1024, sequence=128, batch=32)

MODELS: dict[str, Measured] = {
    "mlp": Measured(partial(of_benchmark, models.mlp)),
    "mlp, donated": Measured(partial(of_benchmark, models.mlp), donates=True),
    "gpt": Measured(partial(of_benchmark, models.gpt)),
    "gpt, donated": Measured(partial(of_benchmark, models.gpt), donates=True),
    "cnn": Measured(partial(of_benchmark, models.cnn)),
    "cnn, donated": Measured(partial(of_benchmark, models.cnn), donates=True),
    "unet": Measured(unet),
    "scanned layers": Measured(partial(scanned_layers, False)),
    "scanned llama, donated": Measured(
        partial(
            of_shapes, partial(shapes.llama, 4, 256, 512, 8, vocab=2048, sequence=128, batch=16)
        ),
        donates=True,
    ),
    "lstm": Measured(lstm),
    "experts": Measured(experts),
    "vit": Measured(vit),
    "resnet": Measured(resnet, held_out=True),
    "resnet, donated": Measured(resnet, donates=True, held_out=True),
    "bert": Measured(bert, held_out=True),
    "scanned gpt, donated": Measured(
        partial(of_shapes, partial(_SMALL_GPT, 4, scanned=True)), True, True
    ),
    "scanned layers, checkpointed": Measured(partial(scanned_layers, True), held_out=True),
    "recommender": Measured(recommender, held_out=True),
    "state space": Measured(state_space),
    "encoder-decoder": Measured(encoder_decoder, held_out=True),
    "segmentation (flax)": Measured(partial(of_tests, "segmentation"), held_out=True),
    "vae (flax)": Measured(partial(of_tests, "vae"), held_out=True),
    "gpt2 (huggingface)": Measured(partial(of_tests, "gpt2"), held_out=True),
    "mobilenet (haiku)": Measured(partial(of_tests, "mobilenet"), held_out=True),
}
