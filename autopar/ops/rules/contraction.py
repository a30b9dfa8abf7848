"""Rules of products that sum over an index: dense, over groups of rows, and of scaled blocks."""

from __future__ import annotations

from math import prod
from typing import Any

from autopar.core.graph import OpNode
from autopar.core.placement import Kind
from autopar.ops.rules.factor_rule import Dim, Factor, FactorRule
from autopar.ops.rules.linearity import kind_of_sum, linear_sets
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare

Numbers = tuple[tuple[tuple[int, ...], ...], ...]


@rule_for("dot_general")
def dot_general(op: OpNode) -> FactorRule:
    """lhs[b, m, k] . rhs[b, n, k] -> out[b, m, n]; a split k leaves out unreduced; linear in lhs and in rhs."""
    numbers: Numbers = op.params["dimension_numbers"]
    lhs, rhs, out = _product(numbers, op.ins[0].ndim, op.ins[1].ndim)
    kind = kind_of_sum(op.outs[0].dtype)
    reduced: dict[Factor, Kind] = {f: kind for f in lhs if f[0] == "k"}
    return FactorRule.of(
        op, ins=(lhs, rhs), outs=(out,), reduced=reduced, linear=linear_sets(op, (0,), (1,))
    )


def _product(
    numbers: Numbers, lhs_ndim: int, rhs_ndim: int
) -> tuple[list[Factor], list[Factor], list[Factor]]:
    """The factors of lhs, rhs and result: batch dims "b...", summed dims "k...", the others "m..." and "n..."."""
    (lhs_k, rhs_k), (lhs_b, rhs_b) = numbers
    lhs = [f"m{d}" for d in range(lhs_ndim)]
    rhs = [f"n{d}" for d in range(rhs_ndim)]
    for d, e in zip(lhs_b, rhs_b, strict=True):
        lhs[d] = rhs[e] = f"b{d}"
    for d, e in zip(lhs_k, rhs_k, strict=True):
        lhs[d] = rhs[e] = f"k{d}"
    return lhs, rhs, [lhs[d] for d in lhs_b] + [f for f in lhs + rhs if f[0] in "mn"]


@rule_for("ragged_dot_general")
def ragged_dot_general(op: OpNode) -> FactorRule:
    """Products of groups of consecutive rows r of lhs; `sizes[..., s]` says how many rows a group has.

    Rows kept:      lhs[b, r, k] . rhs[g, b, k, n] -> out[b, r, n]; a split k or g leaves out unreduced.
    Rows summed up: lhs[b, r, m] . rhs[b, r, n] -> out[g, b, m, n]; a split r leaves out unreduced.
    Rows are batch: lhs[r, m, k] . rhs[r, k, n] -> out[r, m, n]; a split k leaves out unreduced.

    Devices with a part of r or of g cut the groups to size (sizes are whole); linear in lhs and in rhs.
    """
    params: dict[str, Any] = op.params["ragged_dot_dimension_numbers"]
    numbers: Numbers = params["dot_dimension_numbers"]
    (lhs_k, _), (lhs_b, _) = numbers
    ragged: int = params["lhs_ragged_dimensions"][0]
    lhs, rhs, out = _product(numbers, op.ins[0].ndim, op.ins[1].ndim)
    row = lhs[ragged]
    around = (
        *lhs_b,
        *(lhs_k if ragged in lhs_k else [d for d, f in enumerate(lhs) if f[0] == "m"]),
    )
    prefix = [lhs[d] for d in (lhs_b if ragged in lhs_b else around)]
    grouped: tuple[int, ...] = params["rhs_group_dimensions"]
    for d in grouped:
        out.remove(rhs[d])
        rhs[d] = "g"

    if ragged in lhs_k:
        out.insert(0, "g")

    summed = [f for f in lhs if f[0] == "k"] + (["g"] if "g" in rhs else [])
    return FactorRule.of(
        op,
        ins=(lhs, rhs, [*prefix[: prefix.index(row)][: op.ins[2].ndim - 1], "s"]),
        outs=(out,),
        reduced=dict.fromkeys(summed, kind_of_sum(op.outs[0].dtype)),
        frozen=["s"],
        offsets=[row, *({"g"} & {*rhs, *out})],
        linear=linear_sets(op, (0,), (1,)),
    )


@rule_for("scaled_dot")
def scaled_dot(op: OpNode) -> FactorRule:
    """lhs[b, m, (k i)] . rhs[b, n, (k i)] with scales [b, m, k] and [b, n, k] -> out[b, m, n], blocks of size i whole.

    A split k leaves out unreduced; it is frozen where the blocks of the two sides differ.
    """
    numbers: Numbers = op.params["dimension_numbers"]
    lhs, rhs, out = _product(numbers, op.ins[0].ndim, op.ins[1].ndim)
    dims: list[list[Dim]] = [[(f,) for f in factors] for factors in (lhs, rhs, lhs, rhs)]
    sizes: dict[Factor, int] = {}
    reduced: dict[Factor, Kind] = {}
    (lhs_k, rhs_k), _ = numbers
    for d, e in zip(lhs_k, rhs_k, strict=True):
        block = lhs[d]
        size = op.ins[0].shape[d]
        counts = op.ins[2].shape[d], op.ins[3].shape[e]
        blocks = max(counts) if min(counts) in (1, max(counts)) else 1
        sizes |= {block: blocks, f"i{d}": size // blocks}
        reduced[block] = "sum"
        dims[0][d] = dims[1][e] = (block, f"i{d}")
        for n, position, count in ((2, d, counts[0]), (3, e, counts[1])):
            dims[n][position] = (block,) if count == blocks else (f"scale{n}.{d}",)

    frozen = {f for tensor in dims for factors in tensor for f in factors if f[0] in "is"}
    return FactorRule.of(op, ins=dims, outs=[out], sizes=sizes, reduced=reduced, frozen=frozen)


def _product_flops(op: OpNode) -> float:
    """2 |batch| |m| |n| |k|."""
    contracting: tuple[int, ...] = op.params["dimension_numbers"][0][0]
    return 2.0 * prod(op.outs[0].shape) * prod(op.ins[0].shape[d] for d in contracting)


def _ragged_product_flops(op: OpNode) -> float:
    """2 |batch| |r| |k| |n|: every row is multiplied once, whatever its group."""
    params = op.params["ragged_dot_dimension_numbers"]
    (_, rhs_k), (_, rhs_b) = params["dot_dimension_numbers"]
    apart = {*rhs_k, *rhs_b, *params["rhs_group_dimensions"]}
    return (
        2.0
        * prod(op.ins[0].shape)
        * prod(size for d, size in enumerate(op.ins[1].shape) if d not in apart)
    )


declare("dot_general", is_contraction=True)
declare("dot_general", "scaled_dot", is_fusible=False, is_recomputable=True, flops=_product_flops)
declare("ragged_dot_general", is_fusible=False, is_recomputable=True, flops=_ragged_product_flops)
