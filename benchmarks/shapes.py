"""Large models in shape only: training steps in plain JAX whose state is a tree of jax.ShapeDtypeStruct.

GPTs with unrolled or scanned layers, Llama 3 (Grattafiori et al. 2024) and a mixture of experts of the sizes of
DeepSeek-V3 (671 B parameters). All train by Adam in float32; the Llamas and the mixture compute in bfloat16 and
rematerialise each layer. Nothing is allocated, however large the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models import adam, attention, cross_entropy, dense, drop, layer_norm

Tree = Any
Block = Callable[[Tree, jax.Array, jax.Array], jax.Array]
Dims = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Shapes:
    """A training step, `step(state, *batch)`, and its arguments in shape only."""

    step: Callable[..., tuple[Tree, jax.Array]]
    args: tuple[Tree, ...]

    @property
    def parameters(self) -> int:
        """The number of trained values."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.args[0]["params"]))


def gpt(
    layers: int,
    *,
    scanned: bool = False,
    width: int = 1024,
    heads: int = 16,
    vocab: int = 32768,
    sequence: int = 256,
    batch: int = 256,
) -> Shapes:
    """Causal pre-norm decoder with dropout, `models.gpt` in shape only; its layers unrolled, or in one scan."""
    products = dict.fromkeys(("query", "key", "value", "out"), (width, width))
    products |= {"fc1": (width, 4 * width), "fc2": (4 * width, width)}
    block = {name: {"kernel": floats(m, n), "bias": floats(n)} for name, (m, n) in products.items()}
    block |= {name: norm(width) for name in ("norm1", "norm2")}
    params = {
        "tokens": floats(vocab, width),
        "positions": floats(sequence, width),
        "blocks": stacked(block, layers) if scanned else [block] * layers,
        "norm": norm(width),
        "head": floats(width, vocab),
    }

    def loss(params: Tree, key: jax.Array, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        x = params["tokens"][tokens] + params["positions"]
        x = _through(partial(_gpt_block, heads), params["blocks"], x, jax.random.split(key, layers))
        return cross_entropy(layer_norm(params["norm"], x) @ params["head"], targets)

    return _training(loss, params, batch, sequence)


def _gpt_block(heads: int, p: Tree, x: jax.Array, key: jax.Array) -> jax.Array:
    keys = jax.random.split(key, 3)
    normed = layer_norm(p["norm1"], x)
    q, k, v = (dense(p[name], normed) for name in ("query", "key", "value"))
    x = x + drop(dense(p["out"], attention(q, k, v, keys[0], heads)), keys[1])
    hidden = jax.nn.gelu(dense(p["fc1"], layer_norm(p["norm2"], x)))
    return x + drop(dense(p["fc2"], hidden), keys[2])


# Llama ----------------------------------------------------------------------------------------------------------------


def llama(
    layers: int,
    width: int,
    hidden: int,
    heads: int,
    *,
    kv_heads: int = 8,
    vocab: int = 128256,
    sequence: int = 4096,
    batch: int = 64,
    scanned: bool = True,
) -> Shapes:
    """Llama 3: RMSNorm, rotary positions, grouped queries, SwiGLU; every layer rematerialised."""
    block = kernels(
        {
            **attention_shapes(width, heads, kv_heads),
            **_swiglu_shapes(width, hidden),
            "norm1": (width,),
            "norm2": (width,),
        }
    )
    params = {
        "tokens": floats(vocab, width),
        "blocks": stacked(block, layers) if scanned else [block] * layers,
        "norm": floats(width),
        "head": floats(width, vocab),
    }
    return _training(
        partial(decoder_loss, (("blocks", layers, llama_block),)), params, batch, sequence
    )


def llama_block(p: Tree, x: jax.Array, _key: jax.Array) -> jax.Array:
    """One layer of Llama on x[batch, position, width]."""
    normed = rms_norm(p["norm1"], x)
    q, k, v = (
        jnp.einsum("bsm,mhd->bshd", normed, p[name].astype(x.dtype))
        for name in ("query", "key", "value")
    )
    mixed = grouped_attention(rotated(q), rotated(k), v)
    x = x + jnp.einsum("bshd,hdm->bsm", mixed, p["out"].astype(x.dtype))
    return x + _swiglu(p, rms_norm(p["norm2"], x))


def grouped_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention of q[b, q, heads, d] on k, v[b, k, groups, d]: each group of heads shares keys and values."""
    q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    scores = jnp.einsum("bqgnd,bkgd->bgnqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1).astype(v.dtype)
    mixed = jnp.einsum("bgnqk,bkgd->bqgnd", weights, v)
    return mixed.reshape(*mixed.shape[:2], -1, v.shape[-1])


def rotated(x: jax.Array) -> jax.Array:
    """Rotary positions on x[b, s, heads, d] (Su et al. 2021)."""
    half = x.shape[-1] // 2
    frequencies = 500_000.0 ** -(jnp.arange(half) / half)
    angles = jnp.arange(x.shape[1])[:, None] * frequencies
    cos, sin = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def rms_norm(scale: jax.Array, x: jax.Array) -> jax.Array:
    """Root-mean-square norm (Zhang and Sennrich 2019), computed in float32."""
    wide = x.astype(jnp.float32)
    normed = wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    return (normed * scale).astype(x.dtype)


def attention_shapes(width: int, heads: int, kv_heads: int) -> Dims:
    """The kernels of attention whose heads share keys and values in groups."""
    head = width // heads
    kernels = dict.fromkeys(("key", "value"), (width, kv_heads, head))
    return kernels | {"query": (width, heads, head), "out": (heads, head, width)}


def _swiglu_shapes(width: int, hidden: int) -> Dims:
    return {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}


def _swiglu(p: Tree, x: jax.Array) -> jax.Array:
    gate, up, down = (p[name].astype(x.dtype) for name in ("gate", "up", "down"))
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


# Encoder and decoder --------------------------------------------------------------------------------------------------


def encoder_decoder(
    layers: int = 24,
    width: int = 1024,
    hidden: int = 2816,
    heads: int = 16,
    *,
    vocab: int = 32128,
    sequence: int = 512,
    batch: int = 512,
) -> Shapes:
    """T5 1.1 large (Raffel et al. 2020): both halves scanned and rematerialised, gated products; rotary positions."""
    own = attention_shapes(width, heads, heads)
    across = {f"cross_{name}": shape for name, shape in own.items()} | {"norm3": (width,)}
    common = {**own, **_swiglu_shapes(width, hidden), "norm1": (width,), "norm2": (width,)}
    params = {
        "tokens": floats(vocab, width),
        "encoder": stacked(kernels(common), layers),
        "decoder": stacked(kernels({**common, **across}), layers),
        "norm": floats(width),
        "head": floats(width, vocab),
    }

    def loss(params: Tree, _key: jax.Array, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        embedded = params["tokens"].astype(jnp.bfloat16)
        encode, decode = (jax.checkpoint(block) for block in (_encoder_block, _decoder_block))
        read = lax.scan(lambda x, p: (encode(p, x), None), embedded[tokens], params["encoder"])[0]
        shifted = embedded[jnp.roll(targets, 1, -1)]
        x = lax.scan(lambda x, p: (decode(p, x, read), None), shifted, params["decoder"])[0]
        logits = rms_norm(params["norm"], x) @ params["head"].astype(x.dtype)
        return cross_entropy(logits.astype(jnp.float32), targets)

    return _training(loss, params, batch, sequence)


def _encoder_block(p: Tree, x: jax.Array) -> jax.Array:
    normed = rms_norm(p["norm1"], x)
    x = x + _mixed(p, normed, normed, rotate=True)
    return x + _swiglu(p, rms_norm(p["norm2"], x))


def _decoder_block(p: Tree, x: jax.Array, read: jax.Array) -> jax.Array:
    cross = {name.removeprefix("cross_"): leaf for name, leaf in p.items() if "cross_" in name}
    normed = rms_norm(p["norm1"], x)
    x = x + _mixed(p, normed, normed, rotate=True, causal=True)
    x = x + _mixed(cross, rms_norm(p["norm3"], x), read)
    return x + _swiglu(p, rms_norm(p["norm2"], x))


def _mixed(
    p: Tree, x: jax.Array, read: jax.Array, *, rotate: bool = False, causal: bool = False
) -> jax.Array:
    """Attention of x[batch, position, width] on what is read, of the same shape."""
    q, k, v = (
        jnp.einsum("bsm,mhd->bshd", source, p[name].astype(x.dtype))
        for source, name in ((x, "query"), (read, "key"), (read, "value"))
    )
    if rotate:
        q, k = rotated(q), rotated(k)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd,hdm->bqm", weights, v, p["out"].astype(x.dtype))


# Mixture of experts ---------------------------------------------------------------------------------------------------

EXPERTS, CHOSEN, GROUP = 256, 8, 256
NOPE, ROPE = 128, 64


def mixture(
    *,
    dense_layers: int = 3,
    moe_layers: int = 58,
    width: int = 7168,
    heads: int = 128,
    hidden: int = 18432,
    expert: int = 2048,
    vocab: int = 129280,
    sequence: int = 4096,
    batch: int = 128,
) -> Shapes:
    """DeepSeek-V3's sizes (2024): latent attention, 256 experts of which 8 are chosen, and one that all tokens take.

    Tokens go to experts by one-hot products in groups of 256, up to a capacity (GShard, Lepikhin et al. 2020).
    Differs: softmax scores without bias and without groups of experts; no prediction of several tokens.
    """
    shared = {
        "query_down": (width, 1536),
        "query_up": (1536, heads, NOPE + ROPE),
        "kv_down": (width, 512),
        "key_rope": (width, ROPE),
        "key_up": (512, heads, NOPE),
        "value_up": (512, heads, NOPE),
        "out": (heads, NOPE, width),
        "norm1": (width,),
        "norm2": (width,),
    }
    experts = {
        f"experts_{name}": (EXPERTS, *shape)
        for name, shape in _swiglu_shapes(width, expert).items()
    }
    moe = {**shared, **_swiglu_shapes(width, expert), **experts, "router": (width, EXPERTS)}
    params = {
        "tokens": floats(vocab, width),
        "dense": stacked(kernels({**shared, **_swiglu_shapes(width, hidden)}), dense_layers),
        "moe": stacked(kernels(moe), moe_layers),
        "norm": floats(width),
        "head": floats(width, vocab),
    }
    stacks = (("dense", dense_layers, _latent_block), ("moe", moe_layers, _moe_block))
    return _training(partial(decoder_loss, stacks), params, batch, sequence)


def _latent_attention(p: Tree, x: jax.Array) -> jax.Array:
    """Attention whose keys and values come from a latent vector of each token."""
    w = {
        name: p[name].astype(x.dtype)
        for name in p
        if name.startswith(("query", "kv", "key", "value", "out"))
    }
    q = jnp.einsum("bsr,rhd->bshd", x @ w["query_down"], w["query_up"])
    latent = x @ w["kv_down"]
    k, v = (jnp.einsum("bsr,rhd->bshd", latent, w[name]) for name in ("key_up", "value_up"))
    k_rope = rotated((x @ w["key_rope"])[:, :, None])
    scores = jnp.einsum("bqhd,bkhd->bhqk", q[..., :NOPE], k)
    scores += jnp.einsum("bqhd,bkd->bhqk", rotated(q[..., NOPE:]), k_rope[:, :, 0])
    scores = scores.astype(jnp.float32) * (NOPE + ROPE) ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1).astype(x.dtype)
    return jnp.einsum("bhqk,bkhd,hdm->bqm", weights, v, w["out"])


def _latent_block(p: Tree, x: jax.Array, _key: jax.Array) -> jax.Array:
    x = x + _latent_attention(p, rms_norm(p["norm1"], x))
    return x + _swiglu(p, rms_norm(p["norm2"], x))


def _moe_block(p: Tree, x: jax.Array, _key: jax.Array) -> jax.Array:
    x = x + _latent_attention(p, rms_norm(p["norm1"], x))
    normed = rms_norm(p["norm2"], x)
    return x + _swiglu(p, normed) + _experts(p, normed)


def _experts(p: Tree, x: jax.Array) -> jax.Array:
    """Every token through its chosen experts, in groups of GROUP tokens; what exceeds the capacity is dropped."""
    tokens = x.reshape(-1, GROUP, x.shape[-1])
    capacity = 2 * GROUP * CHOSEN // EXPERTS
    weights, chosen = lax.top_k(jax.nn.softmax(tokens.astype(jnp.float32) @ p["router"]), CHOSEN)
    wanted = jax.nn.one_hot(chosen, EXPERTS, dtype=jnp.float32)  # [group, token, choice, expert]
    place = jnp.cumsum(wanted.sum(2), axis=1) - 1  # [group, token, expert]
    gates = jnp.einsum("gsk,gske->gse", weights, wanted)
    combine = gates[..., None] * jax.nn.one_hot(place, capacity, dtype=jnp.float32)
    combine = combine.astype(x.dtype)  # [group, token, expert, place]
    dispatch = lax.stop_gradient(combine > 0).astype(x.dtype)
    gate, up, down = (p[f"experts_{name}"].astype(x.dtype) for name in ("gate", "up", "down"))
    sent = jnp.einsum("gsec,gsm->egcm", dispatch, tokens)
    hidden = jax.nn.silu(jnp.einsum("egcm,emh->egch", sent, gate)) * jnp.einsum(
        "egcm,emh->egch", sent, up
    )
    answers = jnp.einsum("egch,ehm->egcm", hidden, down)
    return jnp.einsum("gsec,egcm->gsm", combine, answers).reshape(x.shape)


# Parts ----------------------------------------------------------------------------------------------------------------


def decoder_loss(
    stacks: tuple[tuple[str, int, Block], ...],
    params: Tree,
    _key: jax.Array,
    tokens: jax.Array,
    targets: jax.Array,
) -> jax.Array:
    """The loss of a decoder whose layers are those of `stacks`: (name, number of layers, block) in order."""
    x = params["tokens"].astype(jnp.bfloat16)[tokens]
    for name, layers, block in stacks:
        x = _through(jax.checkpoint(block), params[name], x, jnp.zeros(layers, jnp.int32))
    logits = rms_norm(params["norm"], x) @ params["head"].astype(x.dtype)
    return cross_entropy(logits.astype(jnp.float32), targets)


def _through(block: Block, layers: Tree, x: jax.Array, keys: jax.Array) -> jax.Array:
    """`x` through all layers: one after the other if they are a list, by a scan if they are stacked."""
    if isinstance(layers, list):
        for p, key in zip(layers, keys, strict=True):
            x = block(p, x, key)
        return x
    return lax.scan(lambda x, given: (block(given[0], x, given[1]), None), x, (layers, keys))[0]


def _training(loss: Callable[..., jax.Array], params: Tree, batch: int, sequence: int) -> Shapes:
    """The step of Adam on `loss(params, key, tokens, targets)`."""

    def step(state: Tree, tokens: jax.Array, targets: jax.Array) -> tuple[Tree, jax.Array]:
        following, key = jax.random.split(state["key"])
        value, grads = jax.value_and_grad(loss)(state["params"], key, tokens, targets)
        params, opt = adam(state["params"], grads, state["opt"])
        return {"params": params, "opt": opt, "key": following}, value

    opt = {"m": params, "v": params, "count": jax.ShapeDtypeStruct((), jnp.int32)}
    state = {"params": params, "opt": opt, "key": jax.ShapeDtypeStruct((2,), jnp.uint32)}
    text = jax.ShapeDtypeStruct((batch, sequence), jnp.int32)
    return Shapes(step, (state, text, text))


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """An array of float32, in shape only."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def kernels(shapes: Dims) -> Tree:
    """Parameters by name, in shape only."""
    return {name: floats(*shape) for name, shape in shapes.items()}


def norm(width: int) -> Tree:
    """The parameters of a norm, in shape only."""
    return {"scale": floats(width), "bias": floats(width)}


def stacked(block: Tree, layers: int) -> Tree:
    """The parameters of all layers as one array each, the layer in front."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((layers, *leaf.shape), leaf.dtype), block)
