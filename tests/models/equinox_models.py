"""Models of equinox and diffrax: modules are pytrees, so the whole model is the first argument."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax
import numpy as np

from tests.models.weights import (
    Built,
    Step,
    cross_entropy,
    integers,
    normal,
    random_values,
    with_gradients,
)

BATCH, WIDTH, CLASSES = 8, 32, 8


def random_model(kind: Any, *args: Any, **kwargs: Any) -> Any:
    """The module `kind(*args, key=...)` with random weights; its initialiser only tells their shapes."""
    return random_values(eqx.filter_eval_shape(kind, *args, key=jax.random.key(0), **kwargs))


def trained(model: Any, loss: Step, *batch: Any) -> Built:
    """(gradients, loss) by eqx.filter_value_and_grad; what is no array of the model is closed over."""
    arrays, static = eqx.partition(model, eqx.is_array)

    def step(arrays: Any, *batch: Any) -> Any:
        def of_model(model: Any) -> jax.Array:
            return loss(model, *batch)

        return eqx.filter_value_and_grad(of_model)(eqx.combine(arrays, static))

    return step, (arrays, *batch)


class Mixer(eqx.Module):
    """An MLP-Mixer: patches by a convolution, mixing over patches and over channels, under vmap."""

    patch: eqx.nn.Conv2d
    over_patches: list[eqx.nn.MLP]
    over_channels: list[eqx.nn.MLP]
    norms: list[eqx.nn.LayerNorm]
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array, blocks: int = 2, patches: int = 16) -> None:
        keys = jax.random.split(key, 2 * blocks + 2)
        self.patch = eqx.nn.Conv2d(3, WIDTH, 4, stride=4, key=keys[0])
        self.over_patches = [
            eqx.nn.MLP(patches, patches, WIDTH, 1, key=k) for k in keys[1 : blocks + 1]
        ]
        self.over_channels = [eqx.nn.MLP(WIDTH, WIDTH, 64, 1, key=k) for k in keys[blocks + 1 : -1]]
        self.norms = [eqx.nn.LayerNorm((WIDTH, patches)) for _ in range(2 * blocks)]
        self.head = eqx.nn.Linear(WIDTH, CLASSES, key=keys[-1])

    def __call__(self, image: jax.Array) -> jax.Array:
        x = self.patch(image).reshape(WIDTH, -1)
        for n, (patches, channels) in enumerate(
            zip(self.over_patches, self.over_channels, strict=True)
        ):
            x = x + jax.vmap(patches)(self.norms[2 * n](x))
            x = x + jax.vmap(channels, in_axes=1, out_axes=1)(self.norms[2 * n + 1](x))
        return self.head(x.mean(axis=1))


def mixer() -> Built:
    def loss(model: Mixer, images: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(jax.vmap(model)(images), labels)

    return trained(
        random_model(Mixer), loss, normal((BATCH, 3, 16, 16)), integers(CLASSES, (BATCH,))
    )


class Encoder(eqx.Module):
    """A transformer encoder of equinox's own attention, with dropout and rotary positions."""

    embed: eqx.nn.Embedding
    rotary: eqx.nn.RotaryPositionalEmbedding
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    norms: tuple[eqx.nn.RMSNorm, eqx.nn.RMSNorm]
    dropout: eqx.nn.Dropout
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.embed = eqx.nn.Embedding(64, WIDTH, key=keys[0])
        self.rotary = eqx.nn.RotaryPositionalEmbedding(WIDTH // 8)
        self.attention = eqx.nn.MultiheadAttention(8, WIDTH, dropout_p=0.1, key=keys[1])
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 64, 1, jax.nn.gelu, key=keys[2])
        self.norms = (eqx.nn.RMSNorm(WIDTH), eqx.nn.RMSNorm(WIDTH))
        self.dropout = eqx.nn.Dropout(0.1)
        self.head = eqx.nn.Linear(WIDTH, 64, key=keys[3])

    def __call__(self, tokens: jax.Array, key: jax.Array) -> jax.Array:
        def heads(q: Any, k: Any, v: Any) -> Any:
            rotate = jax.vmap(self.rotary, in_axes=1, out_axes=1)
            return rotate(q), rotate(k), v

        first, second = jax.random.split(key)
        x = jax.vmap(self.embed)(tokens)
        y = jax.vmap(self.norms[0])(x)
        mask = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))
        x = x + self.attention(y, y, y, mask, key=first, process_heads=heads)
        x = x + self.dropout(jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x)), key=second)
        return jax.vmap(self.head)(x)


def rotary_transformer() -> Built:
    def loss(model: Encoder, key: jax.Array, tokens: jax.Array) -> jax.Array:
        logits = jax.vmap(model)(tokens, jax.random.split(key, len(tokens)))
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    return trained(random_model(Encoder), loss, jax.random.key(5), integers(64, (BATCH, 16)))


class Recurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __call__(self, inputs: jax.Array) -> jax.Array:
        def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return self.cell(x, state), None

        state, _ = jax.lax.scan(step, jnp.zeros(self.cell.hidden_size), inputs)
        return self.head(state)


def gru() -> Built:
    """The train_rnn example: a GRU over a sequence by lax.scan, under vmap."""
    model = Recurrent(
        random_model(eqx.nn.GRUCell, 8, WIDTH), random_model(eqx.nn.Linear, WIDTH, CLASSES)
    )

    def loss(model: Recurrent, inputs: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(jax.vmap(model)(inputs), labels)

    return trained(model, loss, normal((BATCH, 16, 8)), integers(CLASSES, (BATCH,)))


class Field(eqx.Module):
    mlp: eqx.nn.MLP

    def __call__(self, t: Any, y: jax.Array, args: Any) -> jax.Array:
        return self.mlp(y)


def neural_ode() -> Built:
    """The neural_ode example: diffrax with an adaptive step (a while loop) and checkpointed backpropagation."""
    model = Field(random_model(eqx.nn.MLP, 8, 8, WIDTH, 2, jax.nn.softplus))
    times, targets = np.linspace(0.0, 1.0, 4, dtype=np.float32), normal((BATCH, 4, 8), 1)

    def solve(model: Field, start: jax.Array) -> jax.Array:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(model),
            diffrax.Tsit5(),
            t0=0.0,
            t1=1.0,
            dt0=0.1,
            y0=start,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
            saveat=diffrax.SaveAt(ts=jnp.asarray(times)),
            max_steps=64,
        ).ys

    def loss(model: Field, targets: jax.Array) -> jax.Array:
        return jnp.square(jax.vmap(solve, in_axes=(None, 0))(model, targets[:, 0]) - targets).mean()

    return trained(model, loss, targets)


def kernel_regression() -> Built:
    """Ridge regression by lineax's conjugate gradients: a primitive of its own, and its implicit derivative."""

    def loss(ridge: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        gram = x @ x.T + jnp.exp(ridge) * jnp.eye(len(x))
        operator = lineax.MatrixLinearOperator(gram, lineax.positive_semidefinite_tag)
        weights = lineax.linear_solve(operator, y, lineax.CG(1e-6, 1e-6, max_steps=100)).value
        return jnp.square(x.T @ weights).sum() + jnp.square(weights).mean()

    return with_gradients(loss), (
        np.float32(1.0),
        normal((WIDTH, WIDTH), scale=0.2),
        normal((WIDTH,), 1),
    )
