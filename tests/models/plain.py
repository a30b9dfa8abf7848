"""Models in plain JAX whose operators are not those of dense networks: recurrences, experts, tables, graphs, loops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.ode import odeint

from tests.models.weights import Built, cross_entropy, integers, normal, with_gradients, with_sgd

BATCH, WIDTH = 8, 32


def kernel(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return normal((rows, columns), seed, rows**-0.5)


def rms_norm(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)


# State spaces ---------------------------------------------------------------------------------------------------------


def linear_recurrence() -> Built:
    """LRU: h[t] = a h[t-1] + b x[t] with complex a, all t at once by associative_scan; two layers with gates."""
    layers = [
        {
            "radius": np.abs(normal((WIDTH,), n)) + 0.5,
            "angle": normal((WIDTH,), n + 2),
            "inward": kernel(WIDTH, 2 * WIDTH, n),
            "outward": kernel(2 * WIDTH, WIDTH, n + 2),
            "gate": kernel(WIDTH, WIDTH, n + 4),
        }
        for n in range(2)
    ]
    params = {"embed": normal((64, WIDTH)), "layers": layers, "head": kernel(WIDTH, 64)}

    def join(one: Any, other: Any) -> Any:
        return one[0] * other[0], one[1] * other[0] + other[1]

    def recur(layer: Any, x: jax.Array) -> jax.Array:
        real, imag = jnp.split(rms_norm(x) @ layer["inward"], 2, axis=-1)
        decay = jnp.exp(-jnp.exp(layer["radius"]) + 1j * layer["angle"])
        decay = jnp.broadcast_to(decay, real.shape)
        _, state = lax.associative_scan(join, (decay, real + 1j * imag), axis=1)
        out = jnp.concatenate([state.real, state.imag], axis=-1) @ layer["outward"]
        return x + out * jax.nn.sigmoid(x @ layer["gate"])

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["embed"][tokens]
        for layer in params["layers"]:
            x = recur(layer, x)
        return cross_entropy(x[:, :-1] @ params["head"], tokens[:, 1:])

    return with_gradients(loss), (params, integers(64, (BATCH, 16)))


def selective_state_space() -> Built:
    """Mamba's block: a depthwise causal convolution, input-dependent steps, the state carried by lax.scan over time."""
    states = 8
    params = {
        "inward": kernel(WIDTH, 4 * WIDTH),
        "conv": normal((4, 2 * WIDTH), 1, 0.5),
        "select": kernel(2 * WIDTH, 2 * states, 2),
        "step": kernel(2 * WIDTH, 2 * WIDTH, 3),
        "decay": np.log(
            np.broadcast_to(np.arange(1, states + 1, dtype=np.float32), (2 * WIDTH, states))
        ),
        "outward": kernel(2 * WIDTH, WIDTH, 4),
    }

    def recur(
        decay: jax.Array, x: jax.Array, step: jax.Array, b: jax.Array, c: jax.Array
    ) -> jax.Array:
        def at(state: jax.Array, now: Any) -> tuple[jax.Array, jax.Array]:
            x, step, b, c = now
            state = jnp.exp(step[..., None] * decay) * state + (step * x)[..., None] * b[:, None, :]
            return state, jnp.einsum("bds,bs->bd", state, c)

        start = jnp.zeros((*x.shape[::2], states))
        over_time = [jnp.moveaxis(part, 1, 0) for part in (x, step, b, c)]
        return jnp.moveaxis(lax.scan(at, start, tuple(over_time))[1], 0, 1)

    def loss(params: Any, x: jax.Array, target: jax.Array) -> jax.Array:
        inner, gate = jnp.split(rms_norm(x) @ params["inward"], 2, axis=-1)
        taps = params["conv"][:, None, :]
        inner = lax.conv_general_dilated(
            inner,
            taps,
            (1,),
            [(3, 0)],
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=2 * WIDTH,
        )
        inner = jax.nn.silu(inner)
        b, c = jnp.split(inner @ params["select"], 2, axis=-1)
        y = recur(-jnp.exp(params["decay"]), inner, jax.nn.softplus(inner @ params["step"]), b, c)
        return jnp.square(x + (y * jax.nn.silu(gate)) @ params["outward"] - target).mean()

    return with_gradients(loss), (params, normal((BATCH, 16, WIDTH)), normal((BATCH, 16, WIDTH), 1))


def recurrent_lstm() -> Built:
    """Two LSTM layers by lax.scan over time, and the next token."""
    cells = [
        {"kernel": kernel(2 * WIDTH, 4 * WIDTH, n), "bias": normal((4 * WIDTH,), n, 0.1)}
        for n in range(2)
    ]
    params = {"embed": normal((64, WIDTH)), "cells": cells, "head": kernel(WIDTH, 64)}

    def run(cell: Any, xs: jax.Array) -> jax.Array:
        def step(carry: Any, x: jax.Array) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(
                jnp.concatenate([x, h], axis=-1) @ cell["kernel"] + cell["bias"], 4, axis=-1
            )
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((xs.shape[1], WIDTH))
        return lax.scan(step, (zeros, zeros), xs)[1]

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        x = params["embed"][tokens].swapaxes(0, 1)
        for cell in params["cells"]:
            x = run(cell, x)
        return cross_entropy(x[:-1] @ params["head"], tokens.T[1:])

    return with_sgd(loss), (params, integers(64, (BATCH, 16)))


# Experts --------------------------------------------------------------------------------------------------------------


def switch_experts() -> Built:
    """A mixture of 8 experts, two for each token, with a capacity: dispatch and combine by one-hot products."""
    experts, capacity = 8, 32
    params = {
        "router": kernel(WIDTH, experts),
        "up": normal((experts, WIDTH, 64), 1, WIDTH**-0.5),
        "down": normal((experts, 64, WIDTH), 2, 0.125),
    }

    def route(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights, chosen = lax.top_k(jax.nn.softmax(logits), 2)
        wanted = jax.nn.one_hot(chosen, experts)
        rank = jnp.cumsum(wanted.reshape(-1, experts), axis=0).reshape(wanted.shape) * wanted - 1.0
        slot = jax.nn.one_hot(rank.astype(jnp.int32), capacity) * wanted[..., None]
        return jnp.einsum("tkec->tec", slot), jnp.einsum("tk,tkec->tec", weights, slot)

    def loss(params: Any, x: jax.Array, target: jax.Array) -> jax.Array:
        rows = x.reshape(-1, WIDTH)
        logits = rows @ params["router"]
        dispatch, combine = route(logits)
        hidden = jnp.einsum("tec,td->ecd", dispatch, rows)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", hidden, params["up"]))
        out = jnp.einsum("tec,ecf,efd->td", combine, hidden, params["down"])
        chance = jax.nn.softmax(logits)
        balance = experts * jnp.sum(chance.mean(0) * dispatch.sum(-1).mean(0))
        return jnp.square(rows + out - target.reshape(-1, WIDTH)).mean() + 0.01 * balance

    return with_gradients(loss), (params, normal((BATCH, 16, WIDTH)), normal((BATCH, 16, WIDTH), 1))


def sorted_experts() -> Built:
    """A mixture of experts without dropping: tokens sorted by expert, one ragged product, put back by a scatter."""
    experts = 8
    params = {
        "router": kernel(WIDTH, experts),
        "up": normal((experts, WIDTH, 64), 1, WIDTH**-0.5),
        "down": normal((experts, 64, WIDTH), 2, 0.125),
    }

    def loss(params: Any, x: jax.Array, target: jax.Array) -> jax.Array:
        logits = x @ params["router"]
        chosen = jnp.argmax(logits, axis=-1)
        weight = jnp.take_along_axis(jax.nn.softmax(logits), chosen[:, None], axis=-1)
        order = jnp.argsort(chosen)
        sizes = jnp.bincount(chosen, length=experts).astype(jnp.int32)
        hidden = jax.nn.gelu(lax.ragged_dot(x[order], params["up"], sizes))
        out = jnp.zeros_like(x).at[order].set(lax.ragged_dot(hidden, params["down"], sizes))
        return jnp.square(x + weight * out - target).mean()

    return with_gradients(loss), (params, normal((64, WIDTH)), normal((64, WIDTH), 1))


# Recommenders ---------------------------------------------------------------------------------------------------------


def dlrm() -> Built:
    """DLRM: bottom MLP, embedding bags over three tables, pairwise products (lower triangle), top MLP."""
    params = {
        "tables": [normal((64, 16), n, 0.25) for n in range(3)],
        "bottom": [kernel(8, WIDTH), kernel(WIDTH, 16)],
        "top": [kernel(6 + 16, WIDTH), kernel(WIDTH, 1)],
    }
    below = np.tril_indices(4, -1)

    def mlp(layers: Any, x: jax.Array) -> jax.Array:
        for weights in layers[:-1]:
            x = jax.nn.relu(x @ weights)
        return x @ layers[-1]

    def loss(params: Any, dense: jax.Array, bags: jax.Array, clicks: jax.Array) -> jax.Array:
        looked = [
            jnp.take(t, bags[:, n], axis=0, mode="clip").sum(1)
            for n, t in enumerate(params["tables"])
        ]
        features = jnp.stack([mlp(params["bottom"], dense), *looked], axis=1)
        pairs = jnp.einsum("bid,bjd->bij", features, features)[:, below[0], below[1]]
        logits = mlp(params["top"], jnp.concatenate([pairs, features[:, 0]], axis=-1))[:, 0]
        return jnp.mean(
            jnp.maximum(logits, 0) - logits * clicks + jnp.log1p(jnp.exp(-jnp.abs(logits)))
        )

    clicks = integers(2, (64,)).astype(np.float32)
    return with_sgd(loss), (params, normal((64, 8)), integers(64, (64, 3, 4)), clicks)


def wide_and_deep() -> Built:
    """Hashed crossed features into a wide sparse table (segment_sum), and a deep part over embeddings."""
    params = {
        "wide": normal((1024,), 0, 0.1),
        "embed": normal((64, 16), 1),
        "deep": [kernel(4 * 16, WIDTH), kernel(WIDTH, WIDTH, 1), kernel(WIDTH, 1, 2)],
    }

    def loss(params: Any, ids: jax.Array, clicks: jax.Array) -> jax.Array:
        crossed = (
            ids[:, :, None].astype(jnp.uint32) * 31 + ids[:, None, :].astype(jnp.uint32)
        ) % 1024
        picked = params["wide"][crossed.reshape(-1).astype(jnp.int32)]
        rows = jnp.repeat(jnp.arange(len(ids)), 16, total_repeat_length=picked.size)
        wide = jax.ops.segment_sum(picked, rows, num_segments=len(ids), indices_are_sorted=True)
        x = params["embed"][ids].reshape(len(ids), -1)
        for weights in params["deep"][:-1]:
            x = jax.nn.relu(x @ weights)
        logits = wide + (x @ params["deep"][-1])[:, 0]
        return jnp.mean(jnp.logaddexp(0.0, logits) - logits * clicks)

    return with_gradients(loss), (
        params,
        integers(64, (64, 4)),
        integers(2, (64,)).astype(np.float32),
    )


# Graphs ---------------------------------------------------------------------------------------------------------------


def graph_attention() -> Built:
    """GAT: scores along edges, softmax over each node's edges by segment_max and segment_sum, two rounds."""
    nodes, edges = 32, 128
    params = [
        {"w": kernel(WIDTH, WIDTH, n), "to": normal((WIDTH,), n), "from": normal((WIDTH,), n + 2)}
        for n in (0, 1)
    ]

    def attend(layer: Any, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        h = x @ layer["w"]
        score = jax.nn.leaky_relu((h @ layer["from"])[senders] + (h @ layer["to"])[receivers])
        highest = jax.ops.segment_max(score, receivers, nodes)
        weight = jnp.exp(
            score - lax.stop_gradient(jnp.where(jnp.isfinite(highest), highest, 0.0))[receivers]
        )
        total = jax.ops.segment_sum(weight, receivers, nodes)
        message = h[senders] * (weight / (total[receivers] + 1e-9))[:, None]
        return jax.nn.elu(jax.ops.segment_sum(message, receivers, nodes))

    def loss(
        params: Any, x: jax.Array, senders: jax.Array, receivers: jax.Array, labels: jax.Array
    ) -> jax.Array:
        for layer in params:
            x = attend(layer, x, senders, receivers)
        return cross_entropy(x, labels)

    ends = integers(nodes, (edges,)), integers(nodes, (edges,), 1)
    return with_gradients(loss), (
        params,
        normal((nodes, WIDTH)),
        *ends,
        integers(WIDTH, (nodes,), 2),
    )


# Loops ----------------------------------------------------------------------------------------------------------------


def adjoint_ode() -> Built:
    """A neural ODE by jax's odeint: an adaptive while loop forwards, another backwards for the adjoint."""
    params = [kernel(8, WIDTH), kernel(WIDTH, 8, 1)]
    times = np.linspace(0.0, 1.0, 3, dtype=np.float32)

    def loss(params: Any, start: jax.Array, target: jax.Array) -> jax.Array:
        def field(y: jax.Array, t: jax.Array, params: Any) -> jax.Array:
            return jnp.tanh(y @ params[0]) @ params[1] * jnp.cos(t)

        path = odeint(field, start, times, params, rtol=1e-4, atol=1e-4)
        return jnp.square(path[-1] - target).mean()

    return with_gradients(loss), (params, normal((BATCH, 8)), normal((BATCH, 8), 1))


def decoding() -> Built:
    """Greedy decoding with a key-value cache, in a while loop that ends when every row has ended."""
    heads, length = 8, 16
    params = {
        "embed": normal((64, WIDTH)),
        "qkv": kernel(WIDTH, 3 * WIDTH),
        "out": kernel(WIDTH, WIDTH, 1),
    }

    def step(
        params: Any, cache: jax.Array, token: jax.Array, at: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        x = params["embed"][token]
        q, k, v = ((rms_norm(x) @ params["qkv"]).reshape(-1, 3, heads, WIDTH // heads)).swapaxes(
            0, 1
        )
        cache = lax.dynamic_update_index_in_dim(cache, jnp.stack([k, v]), at, axis=2)
        scores = jnp.einsum("bhd,bthd->bht", q, cache[0])
        weights = jax.nn.softmax(jnp.where(jnp.arange(length) <= at, scores, -1e9))
        x = x + jnp.einsum("bht,bthd->bhd", weights, cache[1]).reshape(x.shape) @ params["out"]
        return cache, jnp.argmax(x @ params["embed"].T, axis=-1).astype(jnp.int32)

    def decode(params: Any, prompt: jax.Array) -> jax.Array:
        def more(state: Any) -> jax.Array:
            at, _, tokens = state
            return (at < length - 1) & ~jnp.all(tokens[:, at] == 0)

        def write(state: Any) -> Any:
            at, cache, tokens = state
            cache, chosen = step(params, cache, tokens[:, at], at)
            return at + 1, cache, lax.dynamic_update_index_in_dim(tokens, chosen, at + 1, axis=1)

        tokens = jnp.zeros((len(prompt), length), jnp.int32).at[:, 0].set(prompt)
        cache = jnp.zeros((2, len(prompt), length, heads, WIDTH // heads))
        return lax.while_loop(more, write, (jnp.int32(0), cache, tokens))[2]

    return decode, (params, integers(63, (BATCH,)) + 1)


# Science --------------------------------------------------------------------------------------------------------------


def physics_informed() -> Built:
    """Burgers' equation: derivatives of a network with respect to its input, inside the loss, by jvp of grad."""
    params = [kernel(2, WIDTH), kernel(WIDTH, WIDTH, 1), kernel(WIDTH, 1, 2)]

    def network(params: Any, t: jax.Array, x: jax.Array) -> jax.Array:
        y = jnp.stack([t, x])
        for weights in params[:-1]:
            y = jnp.tanh(y @ weights)
        return (y @ params[-1])[0]

    def residual(params: Any, t: jax.Array, x: jax.Array) -> jax.Array:
        def slope(x: jax.Array) -> jax.Array:
            return jax.grad(network, argnums=2)(params, t, x)

        value, in_time = jax.value_and_grad(network, argnums=1)(params, t, x)
        in_space, second = jax.jvp(slope, (x,), (jnp.ones_like(x),))
        return in_time + value * in_space - 0.01 * second

    def loss(params: Any, t: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.square(jax.vmap(residual, in_axes=(None, 0, 0))(params, t, x)).mean()

    return with_sgd(loss), (params, np.abs(normal((64,))), normal((64,), 1))


def gaussian_process() -> Built:
    """The negative log likelihood of a Gaussian process, by a Cholesky factor; gradients of the kernel's parameters."""

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        far = jnp.square((x[:, None] - x[None]) * jnp.exp(params["scale"])).sum(-1)
        gram = jnp.exp(params["height"] - 0.5 * far) + jnp.exp(params["noise"]) * jnp.eye(len(x))
        factor = jnp.linalg.cholesky(gram)
        solved = jax.scipy.linalg.cho_solve((factor, True), y)
        return 0.5 * y @ solved + jnp.log(jnp.diagonal(factor)).sum()

    params = {
        "scale": np.zeros(8, np.float32),
        "height": np.float32(0.0),
        "noise": np.float32(-1.0),
    }
    return with_gradients(loss), (params, normal((32, 8)), normal((32,), 1))
