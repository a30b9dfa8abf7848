"""Rules of operators on windows: pooling and its gradient."""

from __future__ import annotations

from autopar.core.graph import OpNode, TensorInfo
from autopar.rules.factor_rule import Dim, Factor, FactorRule
from autopar.rules.linearity import linear_sets
from autopar.rules.registry import rule_for


def _factors(op: OpNode, large: TensorInfo, small: TensorInfo) -> tuple[list[Dim], list[Dim], dict[Factor, int]]:
    """The factors of the windowed tensor and of the tensor of windows, and their sizes.

    Where windows lie side by side without padding, a dim is (window, position in it), and windows can be divided
    among devices; positions (factors "w...") cannot. Windows that overlap are frozen (factors "f..." and "w...").
    """
    dims: list[Dim] = []
    windows: list[Dim] = []
    sizes: dict[Factor, int] = {}
    for d, (size, count) in enumerate(zip(large.shape, small.shape, strict=True)):
        window, stride = op.params["window_dimensions"][d], op.params["window_strides"][d]
        bare = tuple(op.params["padding"][d]) == (0, 0) and op.params.get("base_dilation", (1,) * large.ndim)[d] == 1
        dense = window == 1 or op.params.get("window_dilation", (1,) * large.ndim)[d] == 1
        if bare and dense and window == stride and count * window == size:
            dims.append((f"d{d}", f"w{d}"))
            windows.append((f"d{d}",))
            sizes |= {f"d{d}": count, f"w{d}": window}
        else:
            dims.append((f"w{d}",))
            windows.append((f"f{d}",))
            sizes |= {f"w{d}": size, f"f{d}": count}
    return dims, windows, sizes


def _frozen(sizes: dict[Factor, int]) -> list[Factor]:
    return [factor for factor in sizes if factor[0] in "wf"]


@rule_for("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window")
def reduce_window(op: OpNode) -> FactorRule:
    """out[d...] = reduction of x[(d w)...] over w (general form: several operands and initial values); sum: linear."""
    dims, windows, sizes = _factors(op, op.ins[0], op.outs[0])
    ins = [dims if tensor.ndim else [] for tensor in op.ins]
    linear = linear_sets(op, (0,)) if op.kind == "reduce_window_sum" else ()
    outs = [windows] * len(op.outs)
    return FactorRule.of(op, ins=ins, outs=outs, sizes=sizes, linear=linear, frozen=_frozen(sizes))


@rule_for("select_and_scatter_add")
def select_and_scatter_add(op: OpNode) -> FactorRule:
    """out[(d w)...] = source[d...] where x[(d w)...] is the selected one of its window; linear in source."""
    dims, windows, sizes = _factors(op, op.ins[1], op.ins[0])
    linear = linear_sets(op, (0,))
    return FactorRule.of(op, ins=[windows, dims], outs=[dims], sizes=sizes, linear=linear, frozen=_frozen(sizes))


@rule_for("select_and_gather_add")
def select_and_gather_add(op: OpNode) -> FactorRule:
    """out[d...] = tangents[(d w)...] where x[(d w)...] is the selected one of its window; linear in tangents."""
    dims, windows, sizes = _factors(op, op.ins[0], op.outs[0])
    linear = linear_sets(op, (0,))
    return FactorRule.of(op, ins=[dims, dims], outs=[windows], sizes=sizes, linear=linear, frozen=_frozen(sizes))
