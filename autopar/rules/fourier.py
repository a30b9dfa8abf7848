"""Rule of the discrete Fourier transform."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.rules.factor_rule import FactorRule
from autopar.rules.linearity import linear_sets
from autopar.rules.registry import rule_for


@rule_for("fft")
def fft(op: OpNode) -> FactorRule:
    """out[b..., q...] = sum over p of exp(-2 pi i p q / n) x[b..., p...]; p and q are frozen; linear in x."""
    transformed = len(op.params["fft_lengths"])
    batch = [f"b{d}" for d in range(op.ins[0].ndim - transformed)]
    before, after = ([f"{name}{d}" for d in range(transformed)] for name in "pq")
    return FactorRule.of(
        op,
        ins=[[*batch, *before]],
        outs=[[*batch, *after]],
        frozen=[*before, *after],
        linear=linear_sets(op, (0,)),
    )
