"""Rule of the convolution."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, prod

from autopar.core.graph import OpNode
from autopar.core.halo import Window
from autopar.core.windows import convolution_windows
from autopar.ops.rules.exchange import is_possible, neighbours
from autopar.ops.rules.factor_rule import Factor, FactorRule, TrafficOf
from autopar.ops.rules.linearity import kind_of_sum, linear_sets
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare


@dataclass
class _Spatial:
    """The factors of the spatial dims of operand, kernel and result; what becomes of them."""

    lhs: list[list[Factor]] = field(default_factory=list[list[Factor]])
    rhs: list[list[Factor]] = field(default_factory=list[list[Factor]])
    out: list[list[Factor]] = field(default_factory=list[list[Factor]])
    sizes: dict[Factor, int] = field(default_factory=dict[Factor, int])
    summed: list[Factor] = field(default_factory=lambda: ["c"])
    exchanged: dict[Factor, TrafficOf] = field(default_factory=dict[Factor, TrafficOf])
    frozen: list[Factor] = field(default_factory=list[Factor])


@rule_for("conv_general_dilated")
def conv_general_dilated(op: OpNode) -> FactorRule:
    """lhs[(h n), (g c), s...] * rhs[(g h o), c, r...] -> out[n, (g h o), s...]; a split c leaves out unreduced.

    g are the feature groups and h the batch groups (one of the two is 1); linear in lhs and in rhs. A spatial dim
    is split in lhs and out, or in lhs and rhs (a kernel's gradient; out is then unreduced), whichever of out and rhs is
    larger there; elements under the windows that are a neighbour's are sent.
    """
    numbers: dict[str, tuple[int, ...]] = op.params["dimension_numbers"]
    (lhs_n, lhs_c, *lhs_s), (rhs_o, rhs_c, *rhs_s), (out_n, out_o, *out_s) = (
        numbers[spec] for spec in ("lhs_spec", "rhs_spec", "out_spec")
    )
    lhs, rhs, out = ([[""]] * tensor.ndim for tensor in (*op.ins, *op.outs))
    lhs[lhs_n] = ["h", "n"]
    lhs[lhs_c] = ["g", "c"]
    rhs[rhs_o] = ["g", "h", "o"]
    rhs[rhs_c] = ["c"]
    out[out_n] = ["n"]
    out[out_o] = ["g", "h", "o"]
    spatial = _Spatial()
    for i, (window, dim) in enumerate(zip(convolution_windows(op), lhs_s, strict=True)):
        _add(spatial, i, window, dim)

    for tensor, dims, factors in (
        (lhs, lhs_s, spatial.lhs),
        (rhs, rhs_s, spatial.rhs),
        (out, out_s, spatial.out),
    ):
        for d, names in zip(dims, factors, strict=True):
            tensor[d] = names

    groups: int = op.params["feature_group_count"]
    batch_groups: int = op.params["batch_group_count"]
    sizes = {
        "g": groups,
        "h": batch_groups,
        "o": op.outs[0].shape[out_o] // (groups * batch_groups),
    }
    sizes |= {"n": op.outs[0].shape[out_n], "c": op.ins[1].shape[rhs_c]}
    return FactorRule.of(
        op,
        ins=(lhs, rhs),
        outs=(out,),
        sizes=sizes | spatial.sizes,
        reduced=dict.fromkeys(spatial.summed, kind_of_sum(op.outs[0].dtype)),
        frozen=spatial.frozen,
        linear=linear_sets(op, (0,), (1,)),
        exchanged=spatial.exchanged,
    )


def _add(spatial: _Spatial, i: int, window: Window, dim: int) -> None:
    """Adds spatial dim `i`, `dim` of lhs: factor s is split among devices, the factors left and moved stay whole."""
    split = f"s{i}"
    rest = f"l{i}"
    part = f"t{i}"
    still = f"r{i}"
    summed = window.width > window.count
    moving = window.swapped() if summed else window
    count = gcd(moving.size, moving.count)
    spatial.lhs.append([split, rest])
    spatial.rhs.append([split, part] if summed else [still])
    spatial.out.append([still] if summed else [split, part])
    spatial.sizes |= {
        split: count,
        rest: moving.size // max(1, count),
        part: moving.count // max(1, count),
    }
    spatial.sizes[still] = moving.width
    spatial.frozen += [rest, part, still]
    traffic = neighbours((0, dim, moving.halo))
    if summed:
        spatial.summed.append(split)

    if is_possible(count, traffic):
        spatial.exchanged[split] = traffic
    else:
        spatial.frozen.append(split)


def _flops(op: OpNode) -> float:
    """2 |out| |window| |channels in, of a group|."""
    kernel = op.ins[1].shape
    layout: tuple[int, ...] = op.params["dimension_numbers"]["rhs_spec"]
    return 2.0 * prod(op.outs[0].shape) * prod(kernel) / max(1, kernel[layout[0]])


declare(
    "conv_general_dilated",
    is_contraction=True,
    is_fusible=False,
    is_recomputable=True,
    flops=_flops,
)
