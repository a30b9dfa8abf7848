"""Models of haiku and jraph."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import jraph
import numpy as np

from tests.models.weights import (
    Built,
    cross_entropy,
    integers,
    normal,
    random_weights,
    with_gradients,
    with_sgd,
)

BATCH, WIDTH, CLASSES = 8, 32, 8


def mobilenet() -> Built:
    """haiku's MobileNetV1 is wide; this has its block: depthwise and pointwise convolutions, with batch norm."""

    def network(images: jax.Array) -> jax.Array:
        x = hk.Conv2D(16, 3, stride=2)(images)
        for channels in (32, 32):
            x = jax.nn.relu(norm(hk.DepthwiseConv2D(1, 3)(x)))
            x = jax.nn.relu(norm(hk.Conv2D(channels, 1)(x)))
        return hk.Linear(CLASSES)(x.mean(axis=(1, 2)))

    def norm(x: jax.Array) -> jax.Array:
        return hk.BatchNorm(True, True, 0.9)(x, is_training=True)

    model = hk.transform_with_state(network)
    images, labels = normal((BATCH, 32, 32, 3)), integers(CLASSES, (BATCH,))
    params, state = random_weights(model.init, jax.random.key(0), images)

    def loss(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        logits, _ = model.apply(params, state, None, images)
        return cross_entropy(logits, labels)

    return with_gradients(loss), (params, state, images, labels)


def haiku_rnn() -> Built:
    """The char-level RNN of haiku's examples: a deep LSTM with skips, hk.dynamic_unroll (a scan)."""

    def network(tokens: jax.Array) -> jax.Array:
        core = hk.DeepRNN(
            [hk.Embed(64, WIDTH), hk.LSTM(WIDTH), jax.nn.relu, hk.LSTM(WIDTH), hk.Linear(64)]
        )
        logits, _ = hk.dynamic_unroll(core, tokens, core.initial_state(tokens.shape[1]))
        return logits

    model = hk.without_apply_rng(hk.transform(network))
    tokens = integers(64, (16, BATCH))
    params = random_weights(model.init, jax.random.key(0), tokens)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        return cross_entropy(model.apply(params, tokens)[:-1], tokens[1:])

    return with_sgd(loss), (params, tokens)


def graph_network() -> Built:
    """jraph's GraphNetwork on a batch of padded graphs: edges, nodes and globals updated in turn by MLPs."""
    nodes, edges, graphs = 32, 64, 8
    graph = jraph.GraphsTuple(
        nodes=normal((nodes, WIDTH)),
        edges=normal((edges, WIDTH), 1),
        globals=normal((graphs, WIDTH), 2),
        senders=integers(nodes, (edges,)),
        receivers=integers(nodes, (edges,), 1),
        n_node=np.full(graphs, nodes // graphs, np.int32),
        n_edge=np.full(graphs, edges // graphs, np.int32),
    )

    def network(graph: Any) -> jax.Array:
        def mlp(*inputs: jax.Array) -> jax.Array:
            return hk.nets.MLP([WIDTH, WIDTH])(jnp.concatenate(inputs, axis=-1))

        for _ in range(2):
            graph = jraph.GraphNetwork(mlp, mlp, mlp)(graph)
        return hk.Linear(CLASSES)(graph.globals)

    model = hk.without_apply_rng(hk.transform(network))

    def loss(params: Any, graph: Any, labels: jax.Array) -> jax.Array:
        return cross_entropy(model.apply(params, graph), labels)

    params = random_weights(model.init, jax.random.key(0), graph)
    return with_gradients(loss), (params, graph, integers(CLASSES, (graphs,)))
