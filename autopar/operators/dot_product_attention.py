"""Attention as one operator: `jax.nn.dot_product_attention`, however it is called.

The function of JAX that writes attention out is told apart here, at the one place that all its callers come through.
While operators are kept (`KEEP`) a call is one operator, which runs that function on shards. What `cudnn` asks for are
operators of their own (`ops.rules.attention`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from autopar import _compat
from autopar._compat import untyped_jax
from autopar.operators.decorator import operator
from autopar.operators.primitive import KEEP
from autopar.ops.rules.attention import attention_rule, attention_vjp_rule
from autopar.ops.rules.derived import VJP, derived
from autopar.ops.rules.registry import register

Array = jax.Array
jnp: Any = untyped_jax.numpy


def attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    *,
    scale: float | Array | None = None,
    is_causal: bool = False,
    query_seq_lengths: Array | None = None,
    key_value_seq_lengths: Array | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """For every query the mean of the values, weighted by the softmax of its products with the keys.

        y[b, t, n, h] = sum over s of softmax over s of (scale q[b, t, n, h] . k[b, s, m, h] + bias) v[b, s, m, h]

    That is `jax.nn.dot_product_attention`, and the same operator: a plan keeps that one too. It is split over batch b,
    over heads n together with their key heads m, and over queries t. Keys are whole on every device.

    Args:
      query: [b, t, n, h] or [t, n, h].
      key: [b, s, m, h] or [s, m, h]; n is a multiple of m.
      value: as key.
      bias: added to the products; broadcast to [b, n, t, s].
      mask: bool, broadcast to [b, n, t, s]: False where a query must not see a key.
      scale: what products are multiplied with; None: 1 / sqrt(h).
      is_causal: query t sees the keys 0 to t only.
      query_seq_lengths: [b] int32, how many queries of each row count.
      key_value_seq_lengths: [b] int32, how many keys of each row count.
      local_window_size: how many keys before and after its place a query sees.
      implementation: "xla" or None: products and a softmax; "cudnn": cuDNN's kernel, on a machine without it for
        planning only.
      return_residual: whether the logarithms of the softmax's sums, [b, t, n], are returned too.

    Reference: Vaswani et al. 2017.
    """
    return untyped_jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias,
        mask,
        scale=scale,
        is_causal=is_causal,
        query_seq_lengths=query_seq_lengths,
        key_value_seq_lengths=key_value_seq_lengths,
        local_window_size=local_window_size,
        implementation=implementation,
        return_residual=return_residual,
    )


_WRITTEN_OUT = _compat.attention_written_out()


@operator(
    attention_rule,
    static=("shared", "is_causal", "local_window_size", "return_residual"),
    name="attention",
)
def _on_shard(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    scale: Any,
    positions: Array | None,
    query_seq_lengths: Array | None,
    key_value_seq_lengths: Array | None,
    heads: Array | None,
    shared: int,
    is_causal: bool,
    local_window_size: tuple[int, int] | None,
    return_residual: bool,
) -> Any:
    """Attention of queries at `positions`, a run of places, and of `heads`: as many as a device holds.

    So many heads as `shared` have one key head. Where a device has more key heads than go with its heads, it has all.
    """
    if heads is not None and key.shape[2] not in (1, heads.shape[0] // shared):
        own = heads // shared
        key = jnp.take(key, own, axis=2)
        value = jnp.take(value, own, axis=2)
    if positions is not None and (is_causal or local_window_size is not None):
        seen = _seen(positions, key.shape[1], is_causal, local_window_size)
        mask = seen if mask is None else mask & seen
    if positions is not None and query_seq_lengths is not None:
        query_seq_lengths = query_seq_lengths - positions[0]

    return _WRITTEN_OUT(
        query,
        key,
        value,
        bias,
        mask,
        is_causal=False,
        scale=scale,
        q_seqlen=query_seq_lengths,
        kv_seqlen=key_value_seq_lengths,
        local_window_size=None,
        return_residual=return_residual,
    )


register("attention" + VJP, partial(attention_vjp_rule, derived(attention_rule)), replace=True)


def _seen(positions: Array, keys: int, is_causal: bool, window: tuple[int, int] | None) -> Array:
    """[1, 1, t, s] bool: whether the query at a place sees a key, as JAX masks what is causal and has a window."""
    query: Any = positions[:, None]
    key: Any = jnp.arange(keys)[None, :]
    seen = jnp.ones((1, 1), bool)
    if is_causal:
        seen = seen & (key <= query)
    if window is not None:
        before, after = window
        seen = seen & (query <= key + before) & (query >= key - after)
    return seen[None, None]


def _kept(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    is_causal: bool,
    scale: Any,
    q_seqlen: Array | None,
    kv_seqlen: Array | None,
    local_window_size: tuple[int, int] | None,
    return_residual: bool = False,
) -> Any:
    """What JAX's function of 4-dim arrays returns; where operators are kept it is one."""
    if not KEEP.value:
        return _WRITTEN_OUT(
            query,
            key,
            value,
            bias,
            mask,
            is_causal=is_causal,
            scale=scale,
            q_seqlen=q_seqlen,
            kv_seqlen=kv_seqlen,
            local_window_size=local_window_size,
            return_residual=return_residual,
        )

    counts = is_causal or local_window_size is not None or q_seqlen is not None
    positions = jnp.arange(query.shape[1]) if counts else None

    count = query.shape[2]
    keys = key.shape[2]
    return _on_shard(
        query,
        key,
        value,
        bias,
        mask,
        scale,
        positions,
        q_seqlen,
        kv_seqlen,
        jnp.arange(count) if 1 < keys < count else None,
        count // keys,
        is_causal,
        local_window_size,
        return_residual,
    )


_compat.attention_by(_kept)
