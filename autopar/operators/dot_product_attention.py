"""Attention, as one operator: split over batch, heads and queries."""

from __future__ import annotations

from typing import Any

import jax

from autopar._compat import untyped_jax
from autopar.core.graph import OpNode
from autopar.errors import RuleError
from autopar.operators.decorator import operator
from autopar.ops.rules.factor_rule import Factor, FactorRule

Array = jax.Array
jnp: Any = untyped_jax.numpy


def _attention_rule(op: OpNode) -> FactorRule:
    """q[b..., s, d], k[b..., t, d], v[b..., t, e], mask[b..., s, t] -> y[b..., s, e]; t and d whole; linear in none.

    b are batch and heads, broadcast where they are 1. With `causal` the queries s must know their number: whole.
    """
    batch = [f"b{n}" for n in range(op.outs[0].ndim - 2)]
    last: dict[str, list[Factor]] = {
        "q": ["s", "d"],
        "k": ["t", "d"],
        "v": ["t", "e"],
        "mask": ["s", "t"],
    }
    ins: list[list[Factor]] = []
    alone: list[Factor] = []
    sizes = dict(zip((*batch, "s", "e"), op.outs[0].shape, strict=True))
    for operand, (name, tensor) in enumerate(zip(op.params["arguments"], op.ins, strict=True)):
        factors = ([*batch, *last[name]])[len(batch) + 2 - tensor.ndim :]
        if len(factors) != tensor.ndim:
            raise RuleError(
                f"{name} of 'attention' ({op.source or 'unknown line'}) has shape {tensor.shape}"
            )
        for dim, size in enumerate(tensor.shape):
            if size == 1 != sizes.get(factors[dim], size):
                factors[dim] = f"{name}{operand}.{dim}"
                alone.append(factors[dim])
        ins.append(factors)

    held = {factor for factors in ins for factor in factors}
    out = [*batch, "s", "e"]
    frozen = {"t", "d", *alone, *(set(out) - held), *(["s"] if op.params["causal"] else [])}
    return FactorRule.of(op, ins=ins, outs=[out], frozen=frozen)


@operator(_attention_rule, static=("causal", "scale"))
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Array:
    """For every query the mean of the values, weighted by the softmax of its products with the keys.

        y[..., s, e] = sum over t of softmax over t of (scale q[..., s, d] . k[..., t, d]) v[..., t, e]

    Leading dims are batch and heads, in the order that the user likes, and broadcast. Sums of products and the softmax
    are in float32 at least.

    Args:
      q: [..., s, d] queries.
      k: [..., t, d] keys.
      v: [..., t, e] values.
      mask: [..., s, t] bool, broadcast: False where a query must not see a key; None: it sees all. Who sees none
        gets the mean of all values.
      causal: query s of S sees the keys 0 to T - S + s only, so that the last query sees all T.
      scale: what products are multiplied with; None: 1 / sqrt(d).

    Reference: Vaswani et al. 2017.
    """
    precise = jnp.promote_types(q.dtype, jnp.float32)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    hidden = jnp.finfo(precise).min
    products = jnp.einsum("...sd,...td->...st", q, k, preferred_element_type=precise) * factor
    if causal:
        ahead = k.shape[-2] - q.shape[-2]
        seen = jnp.arange(k.shape[-2]) <= jnp.arange(q.shape[-2])[:, None] + ahead
        products = jnp.where(seen, products, hidden)
    if mask is not None:
        products = jnp.where(mask, products, hidden)
    weights = jax.nn.softmax(products, axis=-1).astype(v.dtype)
    return jnp.einsum("...st,...te->...se", weights, v)
