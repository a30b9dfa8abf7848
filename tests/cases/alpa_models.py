"""More of Alpa's test models in plain JAX: convolutions with batch norm, a mixture of experts, experts of a product."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests import small_models as models

Tree = Any


def convolutions(layers: int, batch: int, image: int, channels: int) -> models.Model:
    """layers x (conv 3x3 of stride 2 without bias, batch norm, relu, max pool 2x2 of stride 1), squared error."""
    draw = np.random.default_rng(0)
    params = [models.conv_init(draw, channels, channels, "float32") for _ in range(layers)]
    images = draw.normal(size=(batch, image, image, channels)).astype("float32")
    side = image // 2**layers
    target = draw.normal(size=(batch, side, side, channels)).astype("float32")

    def loss(params: Tree, _key: None, x: jax.Array, target: jax.Array) -> jax.Array:
        for layer in params:
            x = jax.nn.relu(models.batch_norm(layer, models.conv(layer["kernel"], x, 2)))
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")
        return jnp.mean((x - target) ** 2)

    return models.Model(loss, params, (images, target))


def expert_products(batch: int = 256, width: int = 16, experts: int = 4) -> models.Model:
    """Two dense layers, the width cut into parts for as many experts of two layers, two dense layers; no biases."""
    draw = np.random.default_rng(0)
    part, hidden = width // experts, 8 * width
    params = {
        "dense": [models.normal(draw, (width, width), width**-0.5, "float32") for _ in range(4)],
        "wi": models.normal(draw, (experts, part, hidden), part**-0.5, "float32"),
        "wo": models.normal(draw, (experts, hidden, part), hidden**-0.5, "float32"),
    }
    x, target = (draw.normal(size=(batch, width)).astype("float32") for _ in range(2))

    def loss(params: Tree, _key: None, x: jax.Array, target: jax.Array) -> jax.Array:
        first, second, third, fourth = params["dense"]
        parts = (x @ first @ second).reshape(batch, experts, part)
        hidden = jnp.einsum("bem,emh->ebh", parts, params["wi"])
        x = jnp.einsum("ebh,ehm->bem", hidden, params["wo"]).reshape(batch, width)
        return jnp.mean((x @ third @ fourth - target) ** 2)

    return models.Model(loss, params, (x, target))


def mixture_of_experts(
    batch: int = 64,
    sequence: int = 16,
    width: int = 64,
    heads: int = 16,
    group: int = 32,
    experts: int = 16,
) -> models.Model:
    """Attention, then experts (each token goes to two of them), both with a residual and a norm; squared error."""
    draw = np.random.default_rng(0)
    params = {
        "qkv": models.dense_init(draw, width, 3 * width, "float32"),
        "out": models.dense_init(draw, width, width, "float32"),
        "norm1": models.norm_init(width, "float32"),
        "norm2": models.norm_init(width, "float32"),
        "gate": models.normal(draw, (width, experts), width**-0.5, "float32"),
        "wi": models.normal(draw, (experts, width, 4 * width), width**-0.5, "float32"),
        "wo": models.normal(draw, (experts, 4 * width, width), (4 * width) ** -0.5, "float32"),
    }
    x, target = (draw.normal(size=(batch, sequence, width)).astype("float32") for _ in range(2))
    mask = np.ones((batch, sequence), np.int32)

    def loss(p: Tree, _key: None, x: jax.Array, mask: jax.Array, target: jax.Array) -> jax.Array:
        qkv = models.dense(p["qkv"], x).reshape(*x.shape, 3)
        q, k, v = (models.split_heads(part, heads) for part in jnp.split(qkv, 3, axis=-1))
        mixed = models.attention(q, k, v, mask[:, None, None, :] > 0, None, 0.0)
        x = models.layer_norm(p["norm1"], x + models.dense(p["out"], mixed))
        return jnp.mean((models.layer_norm(p["norm2"], x + _experts(p, x, group)) - target) ** 2)

    return models.Model(loss, params, (x, mask, target))


def _experts(p: Tree, x: jax.Array, group: int) -> jax.Array:
    """Tokens in groups [g, s, m], sent to experts [e, g, c, m] and back."""
    tokens = x.reshape(-1, group, x.shape[-1])
    combine = two_best(jax.nn.softmax(jnp.einsum("gsm,me->gse", tokens, p["gate"])))
    sent = jnp.einsum("gsec,gsm->egcm", (combine != 0).astype(x.dtype), tokens)
    hidden = jax.nn.relu(jnp.einsum("egcm,emh->egch", sent, p["wi"]))
    return jnp.einsum(
        "gsec,gecm->gsm", combine, jnp.einsum("egch,ehm->gecm", hidden, p["wo"])
    ).reshape(x.shape)


def two_best(gates: jax.Array) -> jax.Array:
    """How much of each token [g, s] each place [e, c] of the two experts with the largest gates [g, s, e] takes.

    An expert has 2 s / e places for a group; those of second choice come after those of first, and what finds no place
    is dropped.
    """
    experts, places = gates.shape[-1], 2 * gates.shape[1] // gates.shape[2]
    first = jax.nn.one_hot(jnp.argmax(gates, -1), experts, dtype=gates.dtype)
    second = jax.nn.one_hot(jnp.argmax(gates * (1 - first), -1), experts, dtype=gates.dtype)
    place_1 = jnp.cumsum(first, -2) - first
    first = first * (place_1 < places)
    place_2 = jnp.cumsum(second, -2) - second + first.sum(-2, keepdims=True)
    second = second * (place_2 < places)
    weight_1, weight_2 = (gates * first).sum(-1), (gates * second).sum(-1)
    total = weight_1 + weight_2
    total = jnp.where(total > 0, total, 1.0)

    def taken(choice: jax.Array, place: jax.Array, weight: jax.Array) -> jax.Array:
        where = jax.nn.one_hot(
            (place * choice).sum(-1).astype(jnp.int32), places, dtype=gates.dtype
        )
        return jnp.einsum("gse,gsc->gsec", (weight / total)[..., None] * choice, where)

    return taken(first, place_1, weight_1) + taken(second, place_2, weight_2)
