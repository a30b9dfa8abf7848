"""More training steps that experts lay out by hand, in shape only: images, tables, graphs, recurrences.

As in `experts_models`. More roles: "rows" those of an embedding's table, "nodes" those of a graph, whose edges are its
"data".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks import models
from benchmarks.experts_models import (
    ATTENTION,
    PERCEPTRON,
    Roles,
    attended,
    normed_first,
    perceptron,
    perceptron_block,
    rms_norm,
    roles_of,
    through,
    wide_norm,
)
from benchmarks.models import Model, Split, Tree, conv, cross_entropy, dense
from benchmarks.shapes import floats, norm, stacked


def vit(layers: int = 2, batch: int = 512) -> Model:
    """ViT-L/16 (Dosovitskiy et al. 2021), of whose layers there are fewer; the mean of the patches is classified."""
    width, heads, side, patch = 1024, 16, 14, 16
    params = {
        "patches": floats(patch * patch * 3, width),
        "positions": floats(side * side, width),
        "blocks": stacked(perceptron_block(width, heads, 4 * width), layers),
        "norm": norm(width),
        "classes": _dense(width, 1000),
    }

    def loss(
        params: Tree, _key: jax.Array, split: Split, images: jax.Array, labels: jax.Array
    ) -> jax.Array:
        x = images.reshape(-1, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(-1, side * side, patch * patch * 3) @ params["patches"].astype(jnp.bfloat16)
        x = split(x + params["positions"].astype(x.dtype), "data", "sequence")
        block = partial(normed_first, partial(attended, causal=False), perceptron)
        x = wide_norm(params["norm"], through(block, params["blocks"], x, split)).mean(1)
        return cross_entropy(dense(params["classes"], x.astype(jnp.float32)), labels)

    size = f"{layers} layers of width {width}, {side * side} patches, batch {batch}, Adam"
    roles = {**ATTENTION, **PERCEPTRON}
    return _of_images("ViT", size, loss, params, (side * patch, side * patch), batch, roles)


def resnet(batch: int = 512) -> Model:
    """ResNet-50 (He et al. 2016) with one block in each of its four stages."""
    stages = ((64, 64, 1), (256, 128, 2), (512, 256, 2), (1024, 512, 2))
    params = {
        "stem": {"kernel": floats(7, 7, 3, 64), **norm(64)},
        "stages": [_bottleneck(m, n) for m, n, _ in stages],
        "classes": _dense(2048, 1000),
    }

    def loss(
        params: Tree, _key: jax.Array, split: Split, images: jax.Array, labels: jax.Array
    ) -> jax.Array:
        x = split(jax.nn.relu(_normed_conv(params["stem"], images, 2)), "data")
        x = models.max_pool(x)
        for p, (_, _, stride) in zip(params["stages"], stages, strict=True):
            y = jax.nn.relu(_normed_conv(p["in"], x))
            y = jax.nn.relu(_normed_conv(p["mid"], y, stride))
            x = jax.nn.relu(_normed_conv(p["out"], y) + _normed_conv(p["skip"], x, stride))
            x = split(x, "data")
        return cross_entropy(dense(params["classes"], x.astype(jnp.float32).mean((1, 2))), labels)

    size = f"4 bottleneck blocks, 224x224 pixels, batch {batch}, Adam"
    return _of_images("ResNet", size, loss, params, (224, 224), batch)


def unet(batch: int = 128, side: int = 128) -> Model:
    """U-Net (Ronneberger et al. 2015) of three levels: a class for each pixel."""
    widths = (64, 128, 256)
    params = {
        "down": [
            [_conv(3, m, n), _conv(3, n, n)] for m, n in zip((3, 64, 128), widths, strict=True)
        ],
        "up": [[_conv(2, 2 * n, n), _conv(3, 2 * n, n), _conv(3, n, n)] for n in (128, 64)],
        "out": _conv(1, 64, 16),
    }

    def loss(
        params: Tree, _key: jax.Array, split: Split, images: jax.Array, labels: jax.Array
    ) -> jax.Array:
        x, seen = images, list[jax.Array]()
        for n, level in enumerate(params["down"]):
            x = models.max_pool(x) if n else x
            for kernel in level:
                x = split(jax.nn.relu(conv(x, kernel.astype(x.dtype))), "data")
            seen.append(x)
        for (up, *level), beside in zip(params["up"], seen[-2::-1], strict=True):
            x = jnp.concatenate([_doubled(x, up, "VALID"), beside], -1)
            for kernel in level:
                x = split(jax.nn.relu(conv(x, kernel.astype(x.dtype))), "data")
        x = conv(x, params["out"].astype(x.dtype))
        return cross_entropy(x.astype(jnp.float32), labels)

    size = f"channels {'-'.join(map(str, widths))}, {side}x{side} pixels, batch {batch}, Adam"
    found = _of_images("U-Net", size, loss, params, (side, side), batch)
    pixels: Any = jax.ShapeDtypeStruct((batch, side, side), jnp.int32)
    return Model(
        found.name, size, loss, params, (found.batch[0], pixels), found.spec, found.optimiser
    )


def gan(batch: int = 1024) -> Model:
    """DCGAN (Radford et al. 2016): both networks descend at once, each on its own loss; without batch norms."""
    widths = (1024, 512, 256, 128)
    params = {
        "makes": {
            "in": floats(128, 4 * 4 * 1024),
            "convs": [_conv(4, m, n) for m, n in zip(widths, (*widths[1:], 3), strict=True)],
        },
        "tells": {
            "convs": [
                _conv(4, m, n) for m, n in zip((3, 128, 256, 512), widths[::-1], strict=True)
            ],
            "out": floats(4 * 4 * 1024, 1),
        },
    }

    def made(p: Tree, noise: jax.Array, split: Split) -> jax.Array:
        x = jax.nn.relu((noise @ p["in"].astype(noise.dtype)).reshape(-1, 4, 4, 1024))
        for n, kernel in enumerate(p["convs"]):
            x = split(_doubled(x, kernel, "SAME"), "data")
            x = jax.nn.relu(x) if n < 3 else jnp.tanh(x)
        return x

    def told(p: Tree, x: jax.Array, split: Split) -> jax.Array:
        for kernel in p["convs"]:
            x = split(jax.nn.leaky_relu(conv(x, kernel.astype(x.dtype), 2)), "data")
        return (x.reshape(x.shape[0], -1) @ p["out"].astype(x.dtype)).astype(jnp.float32)

    def loss(
        params: Tree, _key: jax.Array, split: Split, images: jax.Array, noise: jax.Array
    ) -> jax.Array:
        fakes = made(params["makes"], noise, split)
        real = told(params["tells"], images, split)
        caught = told(params["tells"], lax.stop_gradient(fakes), split)
        passed = told(lax.stop_gradient(params["tells"]), fakes, split)
        tells = jax.nn.softplus(-real).mean() + jax.nn.softplus(caught).mean()
        return tells + jax.nn.softplus(-passed).mean()

    data: Any = tuple(
        jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((batch, 64, 64, 3), (batch, 128))
    )
    size = f"DCGAN of 4 + 4 convolutions, 64x64 pixels, batch {batch}, Adam"
    return Model("GAN", size, loss, params, data, partial(roles_of, {}), "adam")


def dlrm(tables: int = 8, rows: int = 2**20, width: int = 64, batch: int = 65536) -> Model:
    """DLRM (Naumov et al. 2019): rows of tables beside a perceptron, their products classified; SGD."""
    pairs = (tables + 1) ** 2
    params = {
        "tables": [floats(rows, width)] * tables,
        "bottom": [_dense(13, 512), _dense(512, 256), _dense(256, width)],
        "top": [_dense(pairs + width, 1024), _dense(1024, 1024), _dense(1024, 1)],
    }

    def loss(
        params: Tree,
        _key: jax.Array,
        split: Split,
        x: jax.Array,
        picked: jax.Array,
        clicked: jax.Array,
    ) -> jax.Array:
        found = [split(table[picked[:, n]], "data") for n, table in enumerate(params["tables"])]
        for p in params["bottom"]:
            x = jax.nn.relu(dense(p, x))
        both = split(jnp.stack([x, *found], 1), "data")
        products = jnp.einsum("bid,bjd->bij", both, both).reshape(batch, -1)
        y = jnp.concatenate([x, products], -1)
        for p in params["top"][:-1]:
            y = jax.nn.relu(dense(p, y))
        logit = dense(params["top"][-1], y)[:, 0]
        return jnp.mean(jax.nn.softplus(logit) - clicked * logit)

    data: Any = (
        jax.ShapeDtypeStruct((batch, 13), jnp.float32),
        jax.ShapeDtypeStruct((batch, tables), jnp.int32),
        jax.ShapeDtypeStruct((batch,), jnp.float32),
    )
    size = f"{tables} tables of {rows:,} x {width}, batch {batch}, SGD"
    return Model("DLRM", size, loss, params, data, _dlrm_roles, "sgd")


def _dlrm_roles(path: tuple[str, ...], _array: Any) -> P:
    return P("rows") if "tables" in path else P()


def graph(nodes: int = 2**17, edges: int = 2**20, width: int = 256, steps: int = 2) -> Model:
    """A graph network (Battaglia et al. 2018): messages along edges are summed at their ends; nodes are classified."""
    perceptrons = {
        "message": [_dense(2 * width, width), _dense(width, width)],
        "update": [_dense(2 * width, width), _dense(width, width)],
    }
    params = {"steps": [perceptrons] * steps, "classes": _dense(width, 64)}

    def through_two(p: Tree, x: jax.Array) -> jax.Array:
        first, second = (jax.tree.map(lambda leaf: leaf.astype(x.dtype), one) for one in p)
        return dense(second, jax.nn.relu(dense(first, x)))

    def loss(
        params: Tree,
        _key: jax.Array,
        split: Split,
        sent: jax.Array,
        received: jax.Array,
        x: jax.Array,
        labels: jax.Array,
    ) -> jax.Array:
        for p in params["steps"]:
            ends = split(jnp.concatenate([x[sent], x[received]], -1), "data")
            messages = split(through_two(p["message"], ends), "data")
            summed = split(jax.ops.segment_sum(messages, received, nodes), "nodes")
            x = split(x + through_two(p["update"], jnp.concatenate([x, summed], -1)), "nodes")
        return cross_entropy(dense(params["classes"], x.astype(jnp.float32)), labels)

    data: Any = (
        jax.ShapeDtypeStruct((edges,), jnp.int32),
        jax.ShapeDtypeStruct((edges,), jnp.int32),
        jax.ShapeDtypeStruct((nodes, width), jnp.bfloat16),
        jax.ShapeDtypeStruct((nodes,), jnp.int32),
    )
    size = f"{nodes:,} nodes of width {width}, {edges:,} edges, {steps} steps, Adam"
    return Model("graph network", size, loss, params, data, partial(roles_of, {}), "adam")


def mamba(layers: int = 2, batch: int = 32, tokens: int = 1024) -> Model:
    """Selective state spaces (Gu and Dao 2023) of width 1024, their recurrence an associative scan."""
    width, inner, states = 1024, 2048, 16
    block = {
        "in": floats(width, 2, inner),
        "step": floats(inner, inner),
        "decay": floats(inner, states),
        "b": floats(inner, states),
        "c": floats(inner, states),
        "back": floats(inner, width),
        "norm1": floats(width),
    }
    roles = {
        "in": P(None, None, "model"),
        "step": P(None, "model"),
        "decay": P("model"),
        "b": P("model"),
        "c": P("model"),
        "back": P("model"),
    }
    params = {"blocks": stacked(block, layers), "norm": floats(width)}

    def loss(params: Tree, _key: jax.Array, split: Split, x: jax.Array, y: jax.Array) -> jax.Array:
        x = through(_selective, params["blocks"], split(x, "data", "sequence"), split)
        made = rms_norm(params["norm"], x).astype(jnp.float32)
        return jnp.mean((made - y.astype(jnp.float32)) ** 2)

    text: Any = jax.ShapeDtypeStruct((batch, tokens, width), jnp.bfloat16)
    size = (
        f"{layers} layers of width {width}, {states} states, {tokens} tokens, batch {batch}, Adam"
    )
    return Model("Mamba", size, loss, params, (text, text), partial(roles_of, roles), "adam")


# Parts ----------------------------------------------------------------------------------------------------------------


def _selective(p: Tree, x: jax.Array, split: Split) -> jax.Array:
    """One block on x[b, l, m]: what each of the states keeps and takes up depends on the token."""
    w = {name: p[name].astype(x.dtype) for name in ("in", "step", "b", "c", "back")}
    both = jnp.einsum("blm,mgd->gbld", rms_norm(p["norm1"], x), w["in"])
    u, gate = (split(part, "data", "context", "model") for part in (both[0], both[1]))
    step = jax.nn.softplus((u @ w["step"]).astype(jnp.float32))
    kept = jnp.exp(-step[..., None] * jnp.exp(p["decay"]))
    taken = step[..., None] * (u @ w["b"])[:, :, None] * u[..., None]

    def after(first: tuple[jax.Array, ...], second: tuple[jax.Array, ...]) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    _, state = lax.associative_scan(after, (kept, taken), axis=1)
    state = split(state.astype(x.dtype), "data", "context", "model")
    mixed = jnp.einsum("bldn,bln->bld", state, u @ w["c"]) * jax.nn.silu(gate)
    return x + split(mixed, "data", "context", "model") @ w["back"]


def _of_images(
    name: str,
    size: str,
    loss: Callable[..., jax.Array],
    params: Tree,
    sides: tuple[int, int],
    batch: int,
    roles: Roles | None = None,
) -> Model:
    """A model of images and, for each, its class."""
    images: Any = jax.ShapeDtypeStruct((batch, *sides, 3), jnp.bfloat16)
    labels: Any = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return Model(name, size, loss, params, (images, labels), partial(roles_of, roles or {}), "adam")


def _normed_conv(p: Tree, x: jax.Array, stride: int = 1) -> jax.Array:
    made = conv(x, p["kernel"].astype(x.dtype), stride)
    return models.batch_norm(p, made.astype(jnp.float32)).astype(x.dtype)


def _bottleneck(m: int, n: int) -> Tree:
    def part(side: int, m: int, n: int) -> Tree:
        return {"kernel": _conv(side, m, n), **norm(n)}

    return {
        "in": part(1, m, n),
        "mid": part(3, n, n),
        "out": part(1, n, 4 * n),
        "skip": part(1, m, 4 * n),
    }


def _doubled(x: jax.Array, kernel: jax.Array, padding: str) -> jax.Array:
    """Images of twice the size."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_transpose(x, kernel.astype(x.dtype), (2, 2), padding, dimension_numbers=numbers)


def _conv(side: int, m: int, n: int) -> Any:
    return floats(side, side, m, n)


def _dense(m: int, n: int) -> Tree:
    return {"kernel": floats(m, n), "bias": floats(n)}
