"""Rules of what random numbers are made of: counters, hashes and keys."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.rules.factor_rule import FactorRule
from autopar.rules.registry import register_whole, rule_for


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
    return FactorRule.of(op, ins=[dims[: op.ins[0].ndim]], outs=[dims[: op.outs[0].ndim]], frozen=words)


register_whole(
    *("rng_bit_generator", "rng_uniform"), reason="one stream of bits: what an element gets depends on all before it"
)
register_whole("random_gamma", reason="draws are rejected in a loop that runs until the last element is accepted")
