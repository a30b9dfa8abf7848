"""cuDNN's attention on CPU, by its formulas: the kernels of JAX's primitives run where there is no GPU.

Importing this module gives both primitives a lowering for CPU. Arrays are [batch, place, heads, features], or in the
layout 1 [batch, heads, place, features].
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.interpreters import mlir

Array = jax.Array
FORWARD: Any = cudnn._dot_product_attention_fwd_p
BACKWARD: Any = cudnn._dot_product_attention_bwd_p
PARAMS = {
    "scale": 0.5,
    "seed": 0,
    "dropout_rate": 0.0,
    "variadic_args": (False, False),
    "mask_type": cudnn.MaskType.NO_MASK,
    "layout": 0,
    "sliding_window_length": None,
}


def _btnh(value: Array, layout: int) -> Array:
    return value if layout == 0 else value.transpose(0, 2, 1, 3)


def _scores(q: Array, k: Array, bias: Array, lengths: Any, params: Any) -> Array:
    """[b, k, g, t, s] products, and -inf where a query does not see a key."""
    b, t, n, h = q.shape
    s, heads = k.shape[1:3]
    grouped = q.reshape(b, t, heads, n // heads, h)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k) * params["scale"]
    if params["variadic_args"][0]:
        spread = jnp.broadcast_to(bias, (b, n, t, s))
        scores = scores + spread.reshape(scores.shape)

    query, key = jnp.arange(t)[:, None], jnp.arange(s)
    seen = jnp.ones((b, 1, 1, t, s), bool)
    if "CAUSAL" in params["mask_type"].name or params["sliding_window_length"] is not None:
        seen = seen & (key <= query)
    if params["sliding_window_length"] is not None:
        seen = seen & (key > query - params["sliding_window_length"])
    if "PADDING" in params["mask_type"].name:
        _, keys = lengths
        seen = seen & (key < keys[:, None, None, None, None])
    return jnp.where(seen, scores, -jnp.inf)


def forward(*operands: Array, is_training: bool, **params: Any) -> list[Array]:
    """The means, and the logarithms of the sums of the softmax."""
    q, k, v = (_btnh(x, params["layout"]) for x in operands[:3])
    scores = _scores(q, k, operands[3], operands[4:6], params)
    sums = jax.nn.logsumexp(scores, -1)
    means = jnp.einsum("bkgts,bske->btkge", jnp.exp(scores - sums[..., None]), v)
    out = _btnh(means.reshape(*q.shape[:3], v.shape[-1]), params["layout"])
    b, t, n, _ = q.shape
    return [out, sums.reshape(b, n, t)] if is_training else [out]


def backward(*operands: Array, **params: Any) -> list[Array]:
    """The gradients of queries, keys and values, and of the bias where that is asked for."""
    q, k, v, *_, out, dy = (
        _btnh(x, params["layout"]) if x.ndim == 4 else x for x in (*operands[:3], *operands[10:])
    )
    b, t, n, _ = q.shape
    heads = k.shape[2]
    scores = _scores(q, k, operands[3], operands[4:6], params)
    weights = jnp.exp(scores - operands[10].reshape(*scores.shape[:-1])[..., None])
    grouped = partial(jnp.reshape, shape=(b, t, heads, n // heads, -1))
    along = jnp.einsum("btkge,bske->bkgts", grouped(dy), v)
    means = jnp.einsum("btkge,btkge->bkgt", grouped(dy), grouped(out))
    inner = weights * (along - means[..., None])
    grads = [
        jnp.einsum("bkgts,bskh->btkgh", inner, k).reshape(q.shape) * params["scale"],
        jnp.einsum("bkgts,btkgh->bskh", inner, grouped(q)) * params["scale"],
        jnp.einsum("bkgts,btkge->bske", weights, grouped(dy)),
    ]
    grads = [_btnh(grad, params["layout"]) for grad in grads]
    if not params["variadic_args"][1]:
        return grads

    bias = operands[3]
    repeated = tuple(d for d in range(4) if bias.shape[d] == 1)
    return [*grads, inner.reshape(b, n, t, -1).sum(repeated, keepdims=True)]


def _as(function: Any) -> Any:
    """In float32, as the kernels sum, with results of the types that the primitive says."""

    def lowered(*operands: Array, **params: Any) -> list[Array]:
        wide = [x.astype("float32") if x.dtype.kind == "f" else x for x in operands]
        found = function(*wide, **params)
        like = operands[: len(found)] if function is backward else (operands[0],)
        types = [x.dtype for x in like] + [jnp.dtype("float32")]
        return [x.astype(dtype) for x, dtype in zip(found, types, strict=False)]

    return mlir.lower_fun(lowered, multiple_results=True)


mlir.register_lowering(FORWARD, _as(forward), platform="cpu")
mlir.register_lowering(BACKWARD, _as(backward), platform="cpu")
