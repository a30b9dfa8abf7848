"""Rate kind: under which name a device states how fast it computes an operator."""

from __future__ import annotations

from math import prod

from autopar.core.graph import OpNode


def rate_kind(op: OpNode) -> str:
    """The operator's kind; of a convolution that is a gradient, "conv_general_dilated:image" or ":window".

    Compilers have a fast kernel for convolutions as people write them, and often none for the order of dims that their
    gradients have. A gradient of the window is told by a window with more places than there are in the result; one of
    the image by its window's channels, which stand the other way round: features last go with channels in before
    channels out, features first with channels out before channels in.
    """
    if op.kind != "conv_general_dilated":
        return op.kind
    dims: dict[str, tuple[int, ...]] = op.params["dimension_numbers"]
    lhs, rhs, out = dims["lhs_spec"], dims["rhs_spec"], dims["out_spec"]
    places = prod(op.outs[0].shape[d] for d in out[2:])
    if prod(op.ins[1].shape[d] for d in rhs[2:]) > places:
        return f"{op.kind}:window"
    features_last = lhs[1] > lhs[0] + 1
    return f"{op.kind}:image" if features_last != (rhs[1] < rhs[0]) else op.kind
