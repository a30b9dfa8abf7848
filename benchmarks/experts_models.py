"""Training steps that experts lay out by hand, in shape only: perceptron, transformers; the rest: `experts_others`.

A loss takes `split(x, *roles)`, which constrains where x lies in the steps by hand and does nothing in the plain one;
`spec(path, array)` has a parameter's roles. A role is what a dim is for, not where it lies (`experts_layouts`): "data"
the batch; "model" heads, columns of the first product of two and rows of the second, words; "sequence" tokens between
these products; "context" tokens within; "expert" experts; "layer" the layers of a stack, which nobody splits.

Parameters are float32 and compute in bfloat16; layers are scanned and rematerialised; Adam. Nothing drops out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks import models
from benchmarks.models import Model, Split, Tree, cross_entropy, layer_norm
from benchmarks.shapes import floats, norm, rms_norm, rotated, stacked

Block = Callable[[Tree, jax.Array, Split], jax.Array]
Roles = Mapping[str, P]

ATTENTION: Roles = {
    "query": P(None, "model"),
    "key": P(None, "model"),
    "value": P(None, "model"),
    "out": P("model"),
}
SWIGLU: Roles = {"gate": P(None, "model"), "up": P(None, "model"), "down": P("model")}
PERCEPTRON: Roles = {"fc1": P(None, "model"), "bias1": P("model"), "fc2": P("model")}
EXPERTS: Roles = {
    "gate": P("expert", None, "model"),
    "up": P("expert", None, "model"),
    "down": P("expert", "model"),
}
WORDS: Roles = {"tokens": P("model"), "head": P(None, "model")}


def mlp() -> Model:
    """Two products around a relu: SGD, without a scan."""
    return models.mlp((4096, 16384, 4096), batch=16384, drawn=False)


def gpt2(layers: int = 2, batch: int = 64, tokens: int = 1024) -> Model:
    """GPT-2 large (Radford et al. 2019), of whose layers there are fewer; words padded to a multiple of 128."""
    width, heads, words = 1280, 20, 50304
    params = {
        "tokens": floats(words, width),
        "positions": floats(tokens, width),
        "blocks": stacked(perceptron_block(width, heads, 4 * width), layers),
        "norm": norm(width),
    }

    def loss(
        params: Tree, _key: jax.Array, split: Split, text: jax.Array, targets: jax.Array
    ) -> jax.Array:
        table = params["tokens"].astype(jnp.bfloat16)
        x = table[text] + params["positions"].astype(jnp.bfloat16)
        block = partial(normed_first, partial(attended, causal=True), perceptron)
        x = through(block, params["blocks"], split(x, "data", "sequence"), split)
        x = wide_norm(params["norm"], x)
        return words_loss(x, table.T, targets, split)

    size = f"{layers} layers of width {width}, {tokens} tokens, {words} words, batch {batch}, Adam"
    roles = {**ATTENTION, **PERCEPTRON, **WORDS}
    return language_model("GPT-2", size, loss, params, roles, batch, tokens)


def bert(layers: int = 2, batch: int = 128, tokens: int = 512) -> Model:
    """BERT large (Devlin et al. 2019), of whose layers there are fewer: norms behind, every word is to be told."""
    width, heads, words = 1024, 16, 30592
    params = {
        "tokens": floats(words, width),
        "positions": floats(tokens, width),
        "blocks": stacked(perceptron_block(width, heads, 4 * width), layers),
        "norm": norm(width),
    }

    def loss(
        params: Tree, _key: jax.Array, split: Split, text: jax.Array, targets: jax.Array
    ) -> jax.Array:
        table = params["tokens"].astype(jnp.bfloat16)
        x = table[text] + params["positions"].astype(jnp.bfloat16)
        x = split(wide_norm(params["norm"], x), "data", "sequence")
        block = partial(normed_last, partial(attended, causal=False), perceptron)
        x = through(block, params["blocks"], x, split)
        return words_loss(x, table.T, targets, split)

    size = f"{layers} layers of width {width}, {tokens} tokens, {words} words, batch {batch}, Adam"
    roles = {**ATTENTION, **PERCEPTRON, **WORDS}
    return language_model("BERT", size, loss, params, roles, batch, tokens)


def llama(layers: int = 2, batch: int = 16, tokens: int = 4096, name: str = "Llama") -> Model:
    """Llama 2 7B (Touvron et al. 2023), of whose layers there are fewer."""
    shapes = {"gate": (4096, 11008), "up": (4096, 11008), "down": (11008, 4096)}
    block = partial(rms_first, partial(attended, causal=True, rotate=True), swiglu)
    roles = {**ATTENTION, **SWIGLU, **WORDS}
    return _decoder(name, block, shapes, roles, layers, batch, tokens)


def mixtral(
    products: Callable[[Tree, jax.Array, Split], jax.Array],
    name: str,
    layers: int = 2,
    batch: int = 8,
    tokens: int = 2048,
) -> Model:
    """Mixtral 8x7B (Jiang et al. 2024), of whose layers there are fewer, each head with keys of its own."""
    shapes = {
        "router": (4096, 8),
        "gate": (8, 4096, 14336),
        "up": (8, 4096, 14336),
        "down": (8, 14336, 4096),
    }
    block = partial(rms_first, partial(attended, causal=True, rotate=True), products)
    roles = {**ATTENTION, **EXPERTS, **WORDS}
    return _decoder(name, block, shapes, roles, layers, batch, tokens)


def _decoder(
    name: str,
    block: Block,
    shapes: Mapping[str, tuple[int, ...]],
    roles: Roles,
    layers: int,
    batch: int,
    tokens: int,
) -> Model:
    """A decoder of Llama's kind, of 32 heads of 128: rotary positions, root-mean-square norms."""
    width, words = 4096, 32000
    kernels = {name: floats(*shape) for name, shape in shapes.items()}
    layer = {
        **attention_kernels(width, heads=32),
        **kernels,
        "norm1": floats(width),
        "norm2": floats(width),
    }
    params = {
        "tokens": floats(words, width),
        "blocks": stacked(layer, layers),
        "norm": floats(width),
        "head": floats(width, words),
    }

    def loss(
        params: Tree, _key: jax.Array, split: Split, text: jax.Array, targets: jax.Array
    ) -> jax.Array:
        x = split(params["tokens"].astype(jnp.bfloat16)[text], "data", "sequence")
        x = rms_norm(params["norm"], through(block, params["blocks"], x, split))
        return words_loss(x, params["head"].astype(x.dtype), targets, split)

    size = f"{layers} layers of width {width}, {tokens} tokens, {words} words, batch {batch}, Adam"
    return language_model(name, size, loss, params, roles, batch, tokens)


def language_model(
    name: str,
    size: str,
    loss: Callable[..., jax.Array],
    params: Tree,
    roles: Roles,
    batch: int,
    tokens: int,
) -> Model:
    """A model of texts and, for each word, the one that is to be told."""
    text: Any = jax.ShapeDtypeStruct((batch, tokens), jnp.int32)
    return Model(name, size, loss, params, (text, text), partial(roles_of, roles), "adam")


def roles_of(roles: Roles, path: tuple[str, ...], _array: Any) -> P:
    """The roles of a parameter by its last key, behind those of a stack's layers."""
    own = next((roles[key] for key in reversed(path) if key in roles), P())
    return P("layer", *own) if "blocks" in path else own


# Blocks ---------------------------------------------------------------------------------------------------------------


def through(block: Block, layers: Tree, x: jax.Array, split: Split) -> jax.Array:
    """`x` through all layers, each rematerialised."""
    body = jax.checkpoint(lambda x, p: (split(block(p, x, split), "data", "sequence"), None))
    return lax.scan(body, x, layers)[0]


def rms_first(mix: Block, products: Block, p: Tree, x: jax.Array, split: Split) -> jax.Array:
    """Llama's block on x[b, s, m]: a root-mean-square norm before each part."""
    x = split(x + mix(p, rms_norm(p["norm1"], x), split), "data", "sequence")
    return x + products(p, rms_norm(p["norm2"], x), split)


def normed_first(mix: Block, products: Block, p: Tree, x: jax.Array, split: Split) -> jax.Array:
    """GPT-2's block on x[b, s, m]: a norm before each part."""
    x = split(x + mix(p, wide_norm(p["norm1"], x), split), "data", "sequence")
    return x + products(p, wide_norm(p["norm2"], x), split)


def normed_last(mix: Block, products: Block, p: Tree, x: jax.Array, split: Split) -> jax.Array:
    """BERT's block on x[b, s, m]: a norm behind each part."""
    x = split(wide_norm(p["norm1"], x + mix(p, x, split)), "data", "sequence")
    return wide_norm(p["norm2"], x + products(p, x, split))


def wide_norm(p: Tree, x: jax.Array) -> jax.Array:
    """A layer norm that is computed in float32."""
    return layer_norm(p, x.astype(jnp.float32)).astype(x.dtype)


def attended(
    p: Tree, x: jax.Array, split: Split, *, causal: bool, rotate: bool = False
) -> jax.Array:
    """Attention on x[b, s, m] between its four products."""
    q, k, v = (
        jnp.einsum("bsm,mhd->bshd", x, p[name].astype(x.dtype))
        for name in ("query", "key", "value")
    )
    q = split(rotated(q) if rotate else q, "data", "context", "model")
    k = split(rotated(k) if rotate else k, "data", None, "model")
    mixed = jax.nn.dot_product_attention(q, k, split(v, "data", None, "model"), is_causal=causal)
    mixed = split(mixed, "data", "context", "model")
    return jnp.einsum("bshd,hdm->bsm", mixed, p["out"].astype(x.dtype))


def swiglu(p: Tree, x: jax.Array, split: Split) -> jax.Array:
    """Llama's perceptron on x[b, s, m]."""
    gate, up, down = (p[name].astype(x.dtype) for name in ("gate", "up", "down"))
    return split(jax.nn.silu(x @ gate) * (x @ up), "data", "context", "model") @ down


def perceptron(p: Tree, x: jax.Array, split: Split) -> jax.Array:
    """GPT-2's perceptron on x[b, s, m]."""
    fc1, bias1, fc2, bias2 = (p[name].astype(x.dtype) for name in ("fc1", "bias1", "fc2", "bias2"))
    return split(jax.nn.gelu(x @ fc1 + bias1), "data", "context", "model") @ fc2 + bias2


def dense_experts(p: Tree, x: jax.Array, split: Split) -> jax.Array:
    """Every token through all experts, whose answers are weighted: by 0 but for the two that it is sent to."""
    scores = x.astype(jnp.float32) @ p["router"]
    weights, chosen = lax.top_k(scores, 2)
    gates = jax.nn.one_hot(chosen, 8) * jax.nn.softmax(weights)[..., None]
    gate, up, down = (p[name].astype(x.dtype) for name in ("gate", "up", "down"))
    hidden = jax.nn.silu(jnp.einsum("bsm,emh->ebsh", x, gate)) * jnp.einsum("bsm,emh->ebsh", x, up)
    hidden = split(hidden, "expert", "data", "context", "model")
    answers = split(jnp.einsum("ebsh,ehm->ebsm", hidden, down), "expert", "data")
    return jnp.einsum("ebsm,bse->bsm", answers, gates.sum(-2).astype(x.dtype))


def sorted_experts(p: Tree, x: jax.Array, split: Split) -> jax.Array:
    """Every token through its two experts: copies are sorted by expert, products are of ragged groups."""
    tokens = x.reshape(-1, x.shape[-1])
    weights, chosen = lax.top_k(tokens.astype(jnp.float32) @ p["router"], 2)
    gates = jax.nn.softmax(weights, axis=-1).astype(x.dtype)
    order = jnp.argsort(chosen.ravel())
    sizes = jnp.bincount(chosen.ravel(), length=p["router"].shape[-1])
    sent = split(tokens[order // 2], "data")
    gate, up, down = (p[name].astype(x.dtype) for name in ("gate", "up", "down"))
    hidden = jax.nn.silu(lax.ragged_dot(sent, gate, sizes)) * lax.ragged_dot(sent, up, sizes)
    answers = lax.ragged_dot(split(hidden, "data", "model"), down, sizes)
    back = split(answers[jnp.argsort(order)], "data").reshape(-1, 2, x.shape[-1])
    return jnp.einsum("tcm,tc->tm", back, gates).reshape(x.shape)


def words_loss(x: jax.Array, head: jax.Array, targets: jax.Array, split: Split) -> jax.Array:
    """The loss of the words that `head` makes of x[b, s, m]."""
    logits = split(x @ head, "data", "context", "model")
    return cross_entropy(logits.astype(jnp.float32), targets)


def attention_kernels(width: int, heads: int) -> Tree:
    """The kernels of attention, in shape only."""
    inward = floats(width, heads, width // heads)
    kernels = dict.fromkeys(("query", "key", "value"), inward)
    return kernels | {"out": floats(heads, width // heads, width)}


def perceptron_block(width: int, heads: int, hidden: int) -> Tree:
    """The parameters of a block of GPT-2 or BERT, in shape only."""
    products = {"fc1": floats(width, hidden), "fc2": floats(hidden, width)}
    biases = {"bias1": floats(hidden), "bias2": floats(width)}
    norms = {"norm1": norm(width), "norm2": norm(width)}
    return {**attention_kernels(width, heads), **products, **biases, **norms}
