"""Rate kind: under which name a device states how fast it computes an operator."""

from __future__ import annotations

from math import prod

from autopar.core.graph import OpNode

_AS = {
    "dot_product_attention_bwd": "attention:backward",
    "dot_product_attention_fwd": "attention",
    "pallas_kernel": "dot_general",
}


def rate_kind(op: OpNode) -> str:
    """The operator's kind, and for some a colon and which form of it.

    | form | what it is |
    |---|---|
    | conv_general_dilated:image, :window | a convolution that is a gradient |
    | reduce_sum:last, reduce_max:last, ... | a reduction over the last dim, and maybe others |
    | transpose:rows | a transpose that leaves the last dim the last: what lies together stays together |
    | attention, attention:backward | a kernel that multiplies queries, keys and values and writes no scores |
    | dot_general | a kernel of Pallas: what is known of it are its products |

    Compilers have a fast kernel for convolutions as people write them, and often none for the order of dims that their
    gradients have. A gradient of the window is told by a window with more places than there are in the result; one of
    the image by its window's channels, which stand the other way round: features last go with channels in before
    channels out, features first with channels out before channels in.
    """
    if op.kind.startswith("reduce_") and "axes" in op.params:
        return f"{op.kind}:last" if op.ins[0].ndim - 1 in op.params["axes"] else op.kind
    if op.kind == "transpose":
        return f"{op.kind}:rows" if op.params["permutation"][-1] == op.ins[0].ndim - 1 else op.kind
    if op.kind in _AS:
        return _AS[op.kind]
    return _convolution(op) if op.kind == "conv_general_dilated" else op.kind


def _convolution(op: OpNode) -> str:
    """The kind of a convolution: as people write it, or one of its gradients."""
    dims: dict[str, tuple[int, ...]] = op.params["dimension_numbers"]
    lhs = dims["lhs_spec"]
    rhs = dims["rhs_spec"]
    out = dims["out_spec"]
    places = prod(op.outs[0].shape[d] for d in out[2:])
    if prod(op.ins[1].shape[d] for d in rhs[2:]) > places:
        return f"{op.kind}:window"
    features_last = lhs[1] > lhs[0] + 1
    return f"{op.kind}:image" if features_last != (rhs[1] < rhs[0]) else op.kind
