"""Rule of the convolution."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.core.placement import Kind
from autopar.rules.factor_rule import Factor, FactorRule
from autopar.rules.linearity import linear_sets
from autopar.rules.registry import rule_for


@rule_for("conv_general_dilated")
def conv_general_dilated(op: OpNode) -> FactorRule:
    """lhs[(h n), (g c), s...] * rhs[(g h o), c, r...] -> out[n, (g h o), s...]; a split c leaves out unreduced.

    g are the feature groups and h the batch groups (one of the two is 1); linear in lhs and in rhs. A spatial dim
    is split where the window is one element, and summed over where the window is the whole dim (the gradient of
    such a convolution); else neighbours would be needed, and it is frozen.
    """
    numbers: dict[str, tuple[int, ...]] = op.params["dimension_numbers"]
    (lhs_n, lhs_c, *lhs_s), (rhs_o, rhs_c, *rhs_s), (out_n, out_o, *out_s) = (
        numbers[spec] for spec in ("lhs_spec", "rhs_spec", "out_spec")
    )
    lhs, rhs, out = ([[""]] * tensor.ndim for tensor in (*op.ins, *op.outs))
    lhs[lhs_n], lhs[lhs_c] = ["h", "n"], ["g", "c"]
    rhs[rhs_o], rhs[rhs_c] = ["g", "h", "o"], ["c"]
    out[out_n], out[out_o] = ["n"], ["g", "h", "o"]
    reduced: dict[Factor, Kind] = {"c": "sum"}
    frozen: list[Factor] = []
    for i, (d, e, f) in enumerate(zip(lhs_s, rhs_s, out_s, strict=True)):
        lhs[d], rhs[e], out[f] = [f"s{i}"], [f"r{i}"], [f"t{i}"]
        if _is_pointwise(op, i, op.ins[1].shape[e]):
            out[f] = lhs[d]
        elif _is_summed(op, i, op.ins[0].shape[d], op.ins[1].shape[e]):
            rhs[e] = lhs[d]
            reduced[f"s{i}"] = "sum"
        else:
            frozen += [f"s{i}", f"r{i}", f"t{i}"]
    groups: int = op.params["feature_group_count"]
    batch_groups: int = op.params["batch_group_count"]
    sizes = {"g": groups, "h": batch_groups, "o": op.outs[0].shape[out_o] // (groups * batch_groups)}
    sizes |= {"n": op.outs[0].shape[out_n], "c": op.ins[1].shape[rhs_c]}
    linear = linear_sets(op, (0,), (1,))
    return FactorRule.of(op, ins=(lhs, rhs), outs=(out,), sizes=sizes, reduced=reduced, frozen=frozen, linear=linear)


def _is_pointwise(op: OpNode, i: int, window: int) -> bool:
    """Whether element s of the result's spatial dim `i` depends on element s alone."""
    params = op.params
    unmoved = params["window_strides"][i] == params["lhs_dilation"][i] == 1
    return window == 1 and unmoved and tuple(params["padding"][i]) == (0, 0)


def _is_summed(op: OpNode, i: int, size: int, window: int) -> bool:
    """Whether the window covers spatial dim `i` once, so that its one result is a sum over the whole dim."""
    params = op.params
    dense = params["lhs_dilation"][i] == params["rhs_dilation"][i] == 1
    return size == window and dense and tuple(params["padding"][i]) == (0, 0)
