"""Public models at their real sizes, in shape only: training steps of GPT-2 XL, BLOOM-176B and Mixtral 8x7B.

What makes them unlike `benchmarks/shapes.py` is what people's models are like: 25 heads and 50257 words, which no
mesh divides; tied embeddings; 70 layers written out with ALiBi; experts that tokens are sorted to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models import adam, attention, cross_entropy, dense, drop, layer_norm
from benchmarks.shapes import (
    Shapes,
    attention_shapes,
    decoder_loss,
    floats,
    grouped_attention,
    kernels,
    norm,
    rms_norm,
    rotated,
    stacked,
)

Tree = Any
DECAY = 1e-5
"""Of every parameter, each step: the learning rate times AdamW's weight decay."""


def gpt2_xl(*, layers: int = 48, batch: int = 64, sequence: int = 1024) -> Shapes:
    """GPT-2 XL (Radford et al. 2019): 25 heads of 64, 50257 words, tied embeddings, dropout; layers written out."""
    width, heads, words = 1600, 25, 50257
    params = {
        "tokens": floats(words, width),
        "positions": floats(sequence, width),
        "blocks": [_block(width)] * layers,
        "norm": norm(width),
    }

    def loss(params: Tree, key: jax.Array, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        first, *keys = jax.random.split(key, layers + 1)
        x = drop(params["tokens"][tokens] + params["positions"], first)
        for p, own in zip(params["blocks"], keys, strict=True):
            x = _gpt2_block(heads, p, x, own)
        return cross_entropy(layer_norm(params["norm"], x) @ params["tokens"].T, targets)

    return adamw_step(loss, params, batch, sequence)


def bloom(*, layers: int = 70, batch: int = 64, sequence: int = 2048) -> Shapes:
    """BLOOM-176B (Workshop 2022): ALiBi (Press et al. 2022), 112 heads, 250880 words, tied embeddings, normed first."""
    width, heads, words = 14336, 112, 250880
    params = {
        "tokens": floats(words, width),
        "embedded": norm(width),
        "blocks": [_block(width)] * layers,
        "norm": norm(width),
    }

    def loss(params: Tree, _key: jax.Array, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        x = layer_norm(params["embedded"], params["tokens"][tokens])
        bias = _alibi(heads, sequence)
        for p in params["blocks"]:
            x = jax.checkpoint(partial(_bloom_block, heads))(p, x, bias)
        return cross_entropy(layer_norm(params["norm"], x) @ params["tokens"].T, targets)

    return adamw_step(loss, params, batch, sequence)


def mixtral(*, layers: int = 32, batch: int = 64, sequence: int = 4096) -> Shapes:
    """Mixtral 8x7B (Jiang et al. 2024): scanned layers, 8 experts of which a token takes 2, sorted by expert."""
    width, hidden, heads, kv_heads, experts = 4096, 14336, 32, 8, 8
    block = kernels(
        {
            **attention_shapes(width, heads, kv_heads),
            "router": (width, experts),
            "gate": (experts, width, hidden),
            "up": (experts, width, hidden),
            "down": (experts, hidden, width),
            "norm1": (width,),
            "norm2": (width,),
        }
    )
    params = {
        "tokens": floats(32000, width),
        "blocks": stacked(block, layers),
        "norm": floats(width),
        "head": floats(width, 32000),
    }
    return adamw_step(
        partial(decoder_loss, (("blocks", layers, _mixtral_block),)), params, batch, sequence
    )


def adamw_step(loss: Callable[..., jax.Array], params: Tree, batch: int, sequence: int) -> Shapes:
    """The step of AdamW (Loshchilov and Hutter 2019) on `loss(params, key, tokens, targets)`."""

    def step(state: Tree, tokens: jax.Array, targets: jax.Array) -> tuple[Tree, jax.Array]:
        following, key = jax.random.split(state["key"])
        value, grads = jax.value_and_grad(loss)(state["params"], key, tokens, targets)
        decayed = jax.tree.map(lambda p: p * (1 - DECAY), state["params"])
        params, opt = adam(decayed, grads, state["opt"])
        return {"params": params, "opt": opt, "key": following}, value

    opt = {"m": params, "v": params, "count": jax.ShapeDtypeStruct((), jnp.int32)}
    state = {"params": params, "opt": opt, "key": jax.ShapeDtypeStruct((2,), jnp.uint32)}
    text = jax.ShapeDtypeStruct((batch, sequence), jnp.int32)
    return Shapes(step, (state, text, text))


# Blocks ---------------------------------------------------------------------------------------------------------------


def _block(width: int) -> Tree:
    """A block whose queries, keys and values are one product, as GPT-2's and BLOOM's are."""
    shapes = {
        "qkv": (width, 3 * width),
        "out": (width, width),
        "fc1": (width, 4 * width),
        "fc2": (4 * width, width),
    }
    block = {name: {"kernel": floats(m, n), "bias": floats(n)} for name, (m, n) in shapes.items()}
    return block | {"norm1": norm(width), "norm2": norm(width)}


def _gpt2_block(heads: int, p: Tree, x: jax.Array, key: jax.Array) -> jax.Array:
    keys = jax.random.split(key, 3)
    q, k, v = jnp.split(dense(p["qkv"], layer_norm(p["norm1"], x)), 3, axis=-1)
    x = x + drop(dense(p["out"], attention(q, k, v, keys[0], heads)), keys[1])
    hidden = jax.nn.gelu(dense(p["fc1"], layer_norm(p["norm2"], x)))
    return x + drop(dense(p["fc2"], hidden), keys[2])


def _bloom_block(heads: int, p: Tree, x: jax.Array, bias: jax.Array) -> jax.Array:
    q, k, v = jnp.split(dense(p["qkv"], layer_norm(p["norm1"], x)), 3, axis=-1)
    q, k, v = (part.reshape(*part.shape[:2], heads, -1) for part in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5 + bias
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    x = x + dense(p["out"], jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))
    return x + dense(p["fc2"], jax.nn.gelu(dense(p["fc1"], layer_norm(p["norm2"], x))))


def _alibi(heads: int, sequence: int) -> jax.Array:
    """What attention's scores lose with distance, [head, 1, key]: less from head to head."""
    slopes = 2.0 ** (-8.0 * jnp.arange(1, heads + 1) / heads)
    return slopes[:, None, None] * jnp.arange(sequence, dtype=jnp.float32)


def _mixtral_block(p: Tree, x: jax.Array, _key: jax.Array) -> jax.Array:
    normed = rms_norm(p["norm1"], x)
    q, k, v = (
        jnp.einsum("bsm,mhd->bshd", normed, p[name].astype(x.dtype))
        for name in ("query", "key", "value")
    )
    mixed = grouped_attention(rotated(q), rotated(k), v)
    x = x + jnp.einsum("bshd,hdm->bsm", mixed, p["out"].astype(x.dtype))
    return x + _sorted_experts(p, rms_norm(p["norm2"], x))


def _sorted_experts(p: Tree, x: jax.Array) -> jax.Array:
    """Every token through its two experts: copies are sorted by expert, products are of ragged groups."""
    tokens = x.reshape(-1, x.shape[-1])
    scores = tokens.astype(jnp.float32) @ p["router"]
    weights, chosen = lax.top_k(scores, 2)
    gates = jax.nn.softmax(weights, axis=-1).astype(x.dtype)
    order = jnp.argsort(chosen.ravel())
    sizes = jnp.bincount(chosen.ravel(), length=p["router"].shape[-1])
    sent = tokens[order // 2]
    gate, up, down = (p[name].astype(x.dtype) for name in ("gate", "up", "down"))
    hidden = jax.nn.silu(lax.ragged_dot(sent, gate, sizes)) * lax.ragged_dot(sent, up, sizes)
    answers = lax.ragged_dot(hidden, down, sizes)
    back = answers[jnp.argsort(order)].reshape(-1, 2, x.shape[-1])
    return jnp.einsum("tcm,tc->tm", back, gates).reshape(x.shape)
