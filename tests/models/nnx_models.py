"""Models of flax.nnx: split into a graph definition and state, merged again inside the step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tests.models.weights import Built, cross_entropy, integers, normal

BATCH, WIDTH, CLASSES = 8, 32, 8


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(8, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 64, rngs=rngs), nnx.Linear(64, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.norms[0](x), mask=mask)
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norms[1](x)))))


class Gemma(nnx.Module):
    """The gemma example's shape: embeddings that also decode, blocks, a final norm."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(64, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x, mask = self.embed(tokens), nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.embed.attend(self.norm(x))


def nnx_transformer() -> Built:
    """nnx.Optimizer with gradient clipping and SGD; the state of the dropout's generator advances."""
    model = Gemma(nnx.Rngs(0))
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
    graph, state = nnx.split((model, nnx.Optimizer(model, tx, wrt=nnx.Param)))

    def loss(model: Gemma, tokens: jax.Array) -> jax.Array:
        return cross_entropy(model(tokens)[:, :-1], tokens[:, 1:])

    def step(state: Any, tokens: jax.Array) -> Any:
        model, optimizer = nnx.merge(graph, state)
        value, grads = nnx.value_and_grad(loss)(model, tokens)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), value

    return step, (state, integers(64, (BATCH, 16)))


class Autoencoder(nnx.Module):
    """Convolutions down, transposed convolutions up, batch norm with running statistics."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.down = nnx.Conv(3, 16, (3, 3), strides=(2, 2), rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.code = nnx.Linear(16, 8, rngs=rngs)
        self.up = nnx.ConvTranspose(8, 3, (3, 3), strides=(2, 2), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.up(nnx.relu(self.code(nnx.relu(self.norm(self.down(x))))))


def nnx_autoencoder() -> Built:
    graph, params, rest = nnx.split(Autoencoder(nnx.Rngs(0)), nnx.Param, ...)

    def loss(params: Any, rest: Any, images: jax.Array) -> Any:
        model = nnx.merge(graph, params, rest, copy=True)
        return jnp.square(model(images) - images).mean(), nnx.state(model, nnx.BatchStat)

    def step(params: Any, rest: Any, images: jax.Array) -> Any:
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params, rest, images)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), stats, value

    return step, (params, rest, normal((BATCH, 16, 16, 3)))
