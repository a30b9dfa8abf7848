"""Rules of what random numbers are made of: counters, hashes and keys."""

from __future__ import annotations

from math import prod

from autopar.core.counters import counted_dim, elements_of_a_count
from autopar.core.graph import OpNode
from autopar.ops.rules.factor_rule import FactorRule, Traffic
from autopar.ops.rules.registry import register_whole, rule_for
from autopar.ops.traits import declare


@rule_for("iota_2x32_shape")
def iota_2x32_shape(op: OpNode) -> FactorRule:
    """high[d...], low[d...] = the two words of the element's number in row-major order; each dim needs its offset."""
    dims = [f"d{d}" for d in range(op.outs[0].ndim)]
    return FactorRule.of(op, ins=[], outs=[dims, dims], offsets=dims)


@rule_for("random_wrap", "random_unwrap")
def random_wrap(op: OpNode) -> FactorRule:
    """keys[d...] <-> words[d..., w...]; the words of a key stay together."""
    dims = [f"d{d}" for d in range(max(op.ins[0].ndim, op.outs[0].ndim))]
    words = dims[min(op.ins[0].ndim, op.outs[0].ndim) :]
    return FactorRule.of(
        op, ins=[dims[: op.ins[0].ndim]], outs=[dims[: op.outs[0].ndim]], frozen=words
    )


@rule_for("rng_bit_generator")
def rng_bit_generator(op: OpNode) -> FactorRule:
    """key', bits[d...] = one stream of bits, counted on from the key: the first dim of more than one element is split.

    A device begins to count where its shard begins. A count gives several elements, which stay together.
    """
    dims = [f"d{d}" for d in range(op.outs[1].ndim)]
    first = counted_dim(op)
    keys, after = (
        ["key"] if op.ins[0].ndim == 1 else [f"{name}{d}" for d in range(op.ins[0].ndim)]
        for name in "kq"
    )
    rest = [factor for d, factor in enumerate(dims) if d != first]
    shape = op.outs[1].shape

    def traffic(parts: int) -> tuple[Traffic, ...] | None:
        return None if prod(shape) // parts % elements_of_a_count(op) else ()

    return FactorRule.of(
        op,
        ins=[keys],
        outs=[after, dims],
        frozen=[*keys, *after, *rest],
        offsets=[] if first is None else [dims[first]],
        exchanged={} if first is None else {dims[first]: traffic},
    )


register_whole(
    "rng_uniform", reason="one stream of bits: what an element gets depends on all before it"
)
register_whole(
    "random_gamma",
    reason="draws are rejected in a loop that runs until the last element is accepted",
)


declare("iota_2x32_shape", "random_bits", is_recomputable=True)
declare("random_gamma", "rng_bit_generator", is_fusible=False)
