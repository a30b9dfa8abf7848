"""Rules of operators on windows: pooling and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import gcd

from autopar.core.graph import OpNode
from autopar.core.halo import Window
from autopar.core.windows import pooling_windows
from autopar.ops.rules.exchange import is_possible, neighbours
from autopar.ops.rules.factor_rule import Dim, Factor, FactorRule, TrafficOf
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare


@dataclass(frozen=True)
class Sliding:
    """The factors of a tensor and of the tensor of windows on it; a dim of theirs is (d, w) and (d, f), or v and p.

    d is split among devices, which send each other elements; w and f are whole. v and p are dims that are split apart,
    if at all: in the tensor but not in its windows, or the other way round.
    """

    dims: list[Dim]
    windows: list[Dim]
    sizes: dict[Factor, int]
    frozen: list[Factor]
    exchanged: dict[Factor, TrafficOf]

    def rule(
        self,
        op: OpNode,
        ins: list[list[Dim]],
        outs: list[list[Dim]],
        linear: tuple[tuple[int, ...], ...],
    ) -> FactorRule:
        """The rule of `op` on tensors with these factors."""
        return FactorRule.of(
            op,
            ins=ins,
            outs=outs,
            sizes=self.sizes,
            linear=linear,
            frozen=self.frozen,
            exchanged=self.exchanged,
        )


def sliding(
    windows: Sequence[Window],
    traffic_of: Callable[[int, Window], TrafficOf],
    apart: Collection[int] = (),
) -> Sliding:
    """The factors where `windows` lie on the dims of a tensor and `traffic_of` tells what is sent along a dim.

    A dim that no number of devices can divide is frozen. Dims that are `apart` have factors of their own on both sides.
    """
    found = Sliding([], [], {}, [], {})
    for d, window in enumerate(windows):
        if d in apart:
            found.dims.append((f"v{d}",))
            found.windows.append((f"p{d}",))
            continue
        split = f"d{d}"
        rest = f"w{d}"
        part = f"f{d}"
        count = gcd(window.size, window.count)
        found.dims.append((split, rest))
        found.windows.append((split, part))
        found.sizes.update(
            {split: count, rest: window.size // max(1, count), part: window.count // max(1, count)}
        )
        found.frozen.extend((rest, part))
        if window == Window(window.size, window.size):
            continue  # the dim passes through
        traffic = traffic_of(d, window)
        if is_possible(count, traffic):
            found.exchanged[split] = traffic
        else:
            found.frozen.append(split)

    return found


@rule_for("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window")
def reduce_window(op: OpNode) -> FactorRule:
    """out[j...] = reduction of x[j * stride + t * dilation - low...] over t; sum: linear.

    General form: several operands and initial values. A dim is split in x and out; neighbours send each other the
    elements that their windows share.
    """
    found = sliding(
        pooling_windows(op, op.ins[0], op.outs[0]),
        lambda d, window: neighbours(*((n, d, window.halo) for n in range(len(op.outs)))),
    )
    scalars: list[list[Dim]] = [[] for _ in op.ins[len(op.outs) :]]
    linear = linear_sets(op, (0,)) if op.kind == "reduce_window_sum" else ()
    return found.rule(
        op,
        [*([found.dims] * len(op.outs)), *scalars],
        [found.windows] * len(op.outs),
        linear=linear,
    )


@rule_for("select_and_scatter_add")
def select_and_scatter_add(op: OpNode) -> FactorRule:
    """out[i...] = sum of source[j...] over the windows j in which x[i...] is the selected one; linear in source.

    A dim is split in all three; a device is sent the windows that hold its elements, and the elements under those.
    """
    found = sliding(
        pooling_windows(op, op.ins[1], op.ins[0]),
        lambda d, window: neighbours((0, d, window.sources), (1, d, window.under_sources)),
    )
    return found.rule(op, [found.windows, found.dims], [found.dims], linear=linear_sets(op, (0,)))


@rule_for("select_and_gather_add")
def select_and_gather_add(op: OpNode) -> FactorRule:
    """out[j...] = tangents[i...] where x[i...] is the selected one of window j; linear in tangents."""
    found = sliding(
        pooling_windows(op, op.ins[1], op.outs[0]),
        lambda d, window: neighbours((0, d, window.halo), (1, d, window.halo)),
    )
    return found.rule(op, [found.dims, found.dims], [found.windows], linear=linear_sets(op, (0,)))


_WINDOWED = ("reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum")

declare("select_and_gather_add", "select_and_scatter_add", *_WINDOWED, is_fusible=False)
declare(*_WINDOWED, reads_fused=True, is_recomputable=True)
