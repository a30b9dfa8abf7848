"""Two more models that are measured: a mixture of experts, and wide embeddings. As in `models`, in plain JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from benchmarks.models import (
    Model,
    Split,
    Tree,
    cross_entropy,
    dense,
    dense_init,
    generator,
    layer_norm,
    norm_init,
    normal,
)


def experts(
    count: int = 8,
    width: int = 128,
    hidden: int = 256,
    groups: int = 32,
    tokens: int = 128,
    classes: int = 256,
    *,
    drawn: bool = True,
) -> Model:
    """A layer of experts between a dense layer and a head, momentum. By hand: experts on the model axis.

    Each token goes to the expert that its router likes best, by products with one-hot tensors, as in GShard; what is
    beyond an expert's capacity in a group, 1.25 times the mean, passes by.
    """
    draw = generator(drawn)
    params = {
        "in": dense_init(draw, width, width),
        "norm": norm_init(width),
        "router": normal(draw, (width, count), width**-0.5),
        "up": normal(draw, (count, width, hidden), width**-0.5),
        "down": normal(draw, (count, hidden, width), hidden**-0.5),
        "head": dense_init(draw, width, classes),
    }
    capacity = tokens * 5 // (4 * count)
    x = normal(draw, (groups, tokens, width), 1.0)
    labels = draw.integers(classes, size=(groups, tokens)).astype(np.int32)

    def loss(
        params: Tree, _key: jax.Array, split: Split, x: jax.Array, labels: jax.Array
    ) -> jax.Array:
        x = jax.nn.relu(dense(params["in"], split(x, "data")))
        normed = layer_norm(params["norm"], x)
        gates = jax.nn.softmax(normed @ params["router"], axis=-1)
        chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), count)
        place = jnp.cumsum(chosen, axis=1) * chosen - 1.0
        sent = jax.nn.one_hot(place.astype(jnp.int32), capacity) * chosen[..., None]
        given = split(jnp.einsum("gsec,gsd->egcd", sent, normed), "model", "data")
        made = jax.nn.relu(jnp.einsum("egcd,edh->egch", given, params["up"]))
        made = split(jnp.einsum("egch,ehd->egcd", made, params["down"]), "model", "data")
        weights = sent * gates[..., None]
        x = x + split(jnp.einsum("gsec,egcd->gsd", weights, made), "data")
        return cross_entropy(dense(params["head"], x), labels)

    def spec(path: tuple[str, ...], array: Any) -> P:
        return P("model") if path[-1] in ("up", "down") and array.ndim == 3 else P()

    size = f"{count} experts {width}-{hidden}-{width}, {groups}x{tokens} tokens, capacity {capacity}, momentum"
    return Model("experts", size, loss, params, (x, labels), spec, "momentum")


def embeddings(
    rows: int = 16384,
    width: int = 64,
    fields: int = 2,
    bag: int = 16,
    hidden: int = 1024,
    batch: int = 2048,
) -> Model:
    """Sums of embeddings from wide tables, then a perceptron, SGD. By hand: tables by rows on the model axis."""
    draw = np.random.default_rng(0)
    classes = 256
    params = {
        "tables": [normal(draw, (rows, width), 0.1) for _ in range(fields)],
        "dense": [dense_init(draw, fields * width, hidden), dense_init(draw, hidden, classes)],
    }
    picked = draw.integers(rows, size=(batch, fields, bag)).astype(np.int32)
    labels = draw.integers(classes, size=batch).astype(np.int32)

    def loss(
        params: Tree, _key: jax.Array, split: Split, picked: jax.Array, labels: jax.Array
    ) -> jax.Array:
        looked_up = [
            split(table[picked[:, n]].sum(1), "data") for n, table in enumerate(params["tables"])
        ]
        x = jax.nn.relu(dense(params["dense"][0], jnp.concatenate(looked_up, axis=-1)))
        return cross_entropy(dense(params["dense"][1], x), labels)

    def spec(path: tuple[str, ...], array: Any) -> P:
        del array
        return P("model", None) if "tables" in path else P()

    size = f"{fields} tables of {rows}x{width}, {bag} rows each, perceptron of {hidden}, batch {batch}, SGD"
    return Model("embeddings", size, loss, params, (picked, labels), spec, "sgd")
