"""Attention written out, block by block of a ring: products and a softmax in float32 or wider.

Reference: Dao et al. 2022, for the gradients of a block by the sums of whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from autopar._compat import untyped_jax
from autopar.emit.local.ring import Ring, goes_round, wide_type
from autopar.emit.local.shard import Array, LocalOp, Run

jnp: Any = untyped_jax.numpy
PLACE = 1
"""The dim of places: arrays are [batch, place, heads, features]."""


def attention(local: LocalOp) -> Run:
    """The means: of a device's queries and whole keys as they are, else by blocks."""
    if not goes_round(local):
        return local.bind()

    def run(*operands: Array) -> Sequence[Array]:
        block = _block(local, operands)
        own = partial(block.attend, is_causal=ring.is_causal)
        return ring.forward(own, block.attend, operands[:3])

    ring = _ring(local)
    return run


def attention_vjp(local: LocalOp) -> Run:
    """The gradients of queries, keys and values; by blocks the means are computed once more."""
    if not goes_round(local):
        return local.bind()

    def run(*operands: Array) -> Sequence[Array]:
        block = _block(local, operands)
        own = partial(block.attend, is_causal=ring.is_causal)
        own_pull = partial(block.pull, is_causal=ring.is_causal)
        given = [*operands[:3], operands[-1]]
        return ring.gradients((own, block.attend), (own_pull, block.pull), given)

    ring = _ring(local)
    return run


def _ring(local: LocalOp) -> Ring:
    axes = local.strategy.ins[0].dims[PLACE]
    return Ring(local, axes, PLACE, bool(local.op.params["is_causal"]))


def _block(local: LocalOp, operands: Sequence[Array]) -> _Block:
    names = local.op.params["arguments"]
    given = dict(zip(names, operands, strict=False))  # a gradient comes behind them
    heads = given.get("heads")
    keys = given["key"].shape[2]
    shared = local.op.params["shared"]
    is_own = heads is None or keys in (1, heads.shape[0] // shared)
    return _Block(given["scale"], None if is_own else heads // shared)


@dataclass(frozen=True)
class _Block:
    """Products of queries and a block of keys, times `scale`; `own` are the key heads of its heads, if it has more."""

    scale: Any
    own: Any

    def attend(
        self, query: Array, key: Array, value: Array, *, is_causal: bool = False
    ) -> list[Array]:
        """Means, and the logarithms of sums."""
        key, value = self._taken(key, value)
        scores = self._scores(query, key, is_causal)
        sums = untyped_jax.nn.logsumexp(scores, -1)
        weights = jnp.exp(scores - sums[..., None]).astype(value.dtype)
        means = jnp.einsum("bkgts,bske->btkge", weights, value, **_wide(query))

        b, t, n, _ = query.shape
        return [means.reshape(b, t, n, -1), sums.reshape(b, n, t)]

    def pull(self, *given: Array, is_causal: bool = False) -> list[Array]:
        """The gradients of queries, keys and values, by sums and means of whole rows."""
        query, whole_key, whole_value, sums, out, dy = given
        key, value = self._taken(whole_key, whole_value)
        scores = self._scores(query, key, is_causal)
        weights = jnp.exp(scores - sums.reshape(scores.shape[:-1])[..., None])
        wide = _wide(query)
        back = _grouped(dy, key)
        inner = jnp.einsum("btkge,bske->bkgts", back, value, **wide)
        means = jnp.einsum("btkge,btkge->bkgt", back, _grouped(out, key), **wide)
        inner = (weights * (inner - means[..., None]) * self.scale).astype(query.dtype)

        dq = jnp.einsum("bkgts,bskh->btkgh", inner, key, **wide).reshape(query.shape)
        dk = jnp.einsum("bkgts,btkgh->bskh", inner, _grouped(query, key), **wide)
        dv = jnp.einsum("bkgts,btkge->bske", weights.astype(dy.dtype), back, **wide)
        return [dq, self._added(dk, whole_key), self._added(dv, whole_value)]

    def _scores(self, query: Array, key: Array, is_causal: bool) -> Array:
        """[b, k, g, t, s], -inf where a query does not see a key."""
        scores = jnp.einsum("btkgh,bskh->bkgts", _grouped(query, key), key, **_wide(query))
        scores = scores * self.scale
        if not is_causal:
            return scores
        return jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)

    def _taken(self, key: Array, value: Array) -> list[Array]:
        if self.own is None:
            return [key, value]
        return [jnp.take(each, self.own, axis=2) for each in (key, value)]

    def _added(self, gradient: Array, whole: Array) -> Array:
        """The gradient of all key heads, of those that were taken."""
        if self.own is None:
            return gradient
        rows = jnp.moveaxis(gradient, 2, 0)
        zeros = jnp.zeros((whole.shape[2], *rows.shape[1:]), rows.dtype)
        return jnp.moveaxis(zeros.at[self.own].add(rows), 0, 2)


def _grouped(value: Array, key: Array) -> Array:
    """[b, t, (k g), h] as [b, t, k, g, h]."""
    b, t, n, h = value.shape
    heads = key.shape[2]
    return value.reshape(b, t, heads, n // heads, h)


def _wide(value: Array) -> dict[str, Any]:
    return {"preferred_element_type": wide_type(value)}
