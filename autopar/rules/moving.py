"""Rules of operators that move elements along dims: they cut, pad, reverse and join. No arithmetic, so all are linear."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain, combinations
from math import gcd

from autopar.core.graph import OpNode
from autopar.core.halo import Window
from autopar.core.windows import concatenate_windows, pad_windows, slice_windows
from autopar.rules.exchange import is_possible, mirrored, neighbours
from autopar.rules.factor_rule import Dim, FactorRule, TrafficOf
from autopar.rules.linearity import is_summable, linear_sets
from autopar.rules.registry import rule_for
from autopar.rules.windows import sliding

_FEW = 2
"""Rows are few if a shard holds this many times as many: then adding them up takes less than moving shards."""


@rule_for("rev")
def rev(op: OpNode) -> FactorRule:
    """out[d..., k] = x[d..., -k]; where k is split, devices send their shard to the one at the other end."""
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    reversed_dims: tuple[int, ...] = op.params["dimensions"]
    exchanged = {dims[d]: mirrored(0, d, op.ins[0].shape[d]) for d in reversed_dims}
    return FactorRule.of(op, ins=[dims], outs=[dims], exchanged=exchanged, linear=linear_sets(op, (0,)))


@rule_for("slice")
def slice_(op: OpNode) -> FactorRule:
    """out[d..., k] = x[d..., start + k * stride]; a split dim's elements come from other devices where need be.

    Where few elements of a split dim are taken, devices may put zeros for those of other shards: out comes unreduced.
    """
    windows = slice_windows(op)
    few = [] if op.ins[0].dtype.startswith("key<") else [d for d, one in enumerate(windows) if _few_rows(one)(2) == ()]
    return _first_way([_sliced(op, windows, apart) for apart in _subsets(few)])


def _sliced(op: OpNode, windows: Sequence[Window], apart: Collection[int]) -> FactorRule:
    """The rule of a slice that takes few elements of the dims `apart`."""
    found = sliding(windows, lambda d, window: neighbours((0, d, window.halo)), apart)
    rows = {f"v{d}": _few_rows(windows[d]) for d in apart}
    return FactorRule.of(
        op,
        ins=[found.dims],
        outs=[found.windows],
        sizes=found.sizes,
        reduced=dict.fromkeys(rows, "sum" if is_summable(op.ins[0].dtype) else "max"),
        frozen=[*found.frozen, *(f"p{d}" for d in apart)],
        offsets=list(rows),
        exchanged=found.exchanged | rows,
        linear=linear_sets(op, (0,)),
    )


def _few_rows(window: Window) -> TrafficOf:
    """Nothing is sent where the elements taken are few beside a shard; elsewhere a dim cannot be split so."""
    span = (window.count - 1) * window.stride + 1
    return lambda parts: () if _FEW * span * parts <= window.size else None


@rule_for("pad")
def pad(op: OpNode) -> FactorRule:
    """out[d..., k'] = x[d..., k] or the padding value; linear jointly in x and the value.

    A split dim's elements come from other devices where padding moves them there. Of a dim of x that is whole a device
    may take what its shard of the result holds.
    """
    windows = pad_windows(op)
    moved = [d for d, window in enumerate(windows) if window != Window(window.size, window.size)]
    return _first_way([_padded(op, windows, apart) for apart in _subsets(moved)])


def _padded(op: OpNode, windows: Sequence[Window], apart: Collection[int]) -> FactorRule:
    """The rule of a padding to which the dims `apart` come whole."""
    found = sliding(windows, lambda d, window: neighbours((0, d, window.halo)), apart)
    return FactorRule.of(
        op,
        ins=[found.dims, []],
        outs=[found.windows],
        sizes=found.sizes,
        frozen=[*found.frozen, *(f"v{d}" for d in apart)],
        offsets=[f"p{d}" for d in apart],
        exchanged=found.exchanged,
        linear=linear_sets(op, (0, 1)),
    )


@rule_for("concatenate")
def concatenate(op: OpNode) -> FactorRule:
    """out[d..., (k0 k1 ...)] = x0[d..., k0], x1[d..., k1], ...; linear jointly in all operands.

    All of them are split where every element of the result is on the device that wants it or on one that sends it. Or
    the longest ones are, and of the others, which are whole, each device takes what its shard of the result holds.
    """
    axis: int = op.params["dimension"]
    sizes = [tensor.shape[axis] for tensor in op.ins]
    longest = [n for n, size in enumerate(sizes) if size == max(sizes)]
    every = [*range(len(op.ins))]
    return _first_way([_joined(op, axis, split) for split in ([every, longest] if longest != every else [every])])


def _joined(op: OpNode, axis: int, split: Sequence[int]) -> FactorRule:
    """The rule of a concatenation along `axis` of operands of which those in `split` are split along it."""
    windows, result = concatenate_windows(op), len(op.ins)
    tensors = (*op.ins, *op.outs)
    count = gcd(*(tensors[n].shape[axis] for n in (*split, result)))
    traffic = neighbours(*((n, axis, windows[n].halo) for n in split))
    rests = [f"k{n}" for n in range(len(tensors))]

    def dim_of(n: int, d: int) -> Dim:
        if d != axis:
            return (f"d{d}",)
        return ("k", rests[n]) if n in split or n == result else (rests[n],)

    dims = [[dim_of(n, d) for d in range(tensor.ndim)] for n, tensor in enumerate(tensors)]
    sizes = {rests[n]: tensors[n].shape[axis] // max(1, count) for n in (*split, result)}
    possible = is_possible(count, traffic)
    return FactorRule.of(
        op,
        ins=dims[:-1],
        outs=dims[-1:],
        sizes=sizes | {"k": count},
        frozen=rests if possible else ["k", *rests],
        exchanged={"k": traffic} if possible else {},
        linear=linear_sets(op, tuple(range(len(op.ins)))),
    )


def _subsets(dims: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """All subsets, the empty one first."""
    return chain.from_iterable(combinations(dims, n) for n in range(len(dims) + 1))


def _first_way(rules: Sequence[FactorRule]) -> FactorRule:
    """The first of several rules of one operator, with the others as further ways."""
    return replace(rules[0], ways=tuple(rules[1:]))
