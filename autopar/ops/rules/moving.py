"""Rules of operators that move elements along dims: they cut, pad, reverse and join; all are linear."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain, combinations
from math import gcd

from autopar.core.graph import OpNode
from autopar.core.halo import Window, ring_digits, ring_pieces
from autopar.core.strategy import Hop
from autopar.core.windows import joined_runs, pad_windows, slice_windows
from autopar.ops.rules.exchange import is_possible, mirrored, neighbours
from autopar.ops.rules.factor_rule import Dim, FactorRule, Traffic, TrafficOf
from autopar.ops.rules.indexing import sliced_flops
from autopar.ops.rules.linearity import kind_of_sum, linear_sets
from autopar.ops.rules.registry import rule_for
from autopar.ops.rules.windows import sliding
from autopar.ops.traits import declare

_FEW = 2
"""Rows are few if a shard holds this many times as many: then adding them up takes less than moving shards."""


@rule_for("rev")
def rev(op: OpNode) -> FactorRule:
    """out[d..., k] = x[d..., -k]; where k is split, devices send their shard to the one at the other end."""
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    reversed_dims: tuple[int, ...] = op.params["dimensions"]
    exchanged = {dims[d]: mirrored(0, d, op.ins[0].shape[d]) for d in reversed_dims}
    return FactorRule.of(
        op, ins=[dims], outs=[dims], exchanged=exchanged, linear=linear_sets(op, (0,))
    )


@rule_for("slice")
def slice_(op: OpNode) -> FactorRule:
    """out[d..., k] = x[d..., start + k * stride]; a split dim's elements come from other devices where need be.

    Where few elements of a split dim are taken, devices may put zeros for those of other shards: out comes unreduced.
    """
    windows = slice_windows(op)
    few = (
        []
        if op.ins[0].dtype.startswith("key<")
        else [d for d, one in enumerate(windows) if _few_rows(one)(2) == ()]
    )
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
        reduced=dict.fromkeys(rows, kind_of_sum(op.ins[0].dtype)),
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
    return _first_way(
        [_joined(op, axis, split) for split in ([every, longest] if longest != every else [every])]
    )


@rule_for("splice")
def splice(op: OpNode) -> FactorRule:
    """out[d..., (k0 k1 ...)] = xs[d..., begin0 + k0], xs'[d..., begin1 + k1], ...

    Runs of operands, or zeros: a concatenation of slices, as the tracer finds them, split as a concatenation is.
    Linear jointly in all operands.
    """
    return concatenate(op)


def _joined(op: OpNode, axis: int, split: Sequence[int]) -> FactorRule:
    """The rule of what is joined along `axis` of operands of which those in `split` are split along it."""
    result = len(op.ins)
    tensors = (*op.ins, *op.outs)
    count = gcd(*(tensors[n].shape[axis] for n in (*split, result)))
    runs = [(run.operand, run.window) for run in joined_runs(op) if run.operand in split]
    traffic = neighbours(*((n, axis, window.halo) for n, window in runs if window is not None))
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


@rule_for("roll")
def roll(op: OpNode) -> FactorRule:
    """out[d..., k] = x[d..., (begin + k) mod n]; where k is split, devices in a ring send what moves on."""
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    axis: int = op.params["dimension"]
    size = op.ins[0].shape[axis]

    def traffic(parts: int) -> tuple[Traffic, ...]:
        pieces = ring_pieces(size, parts, op.params["begin"])
        sent = [
            (piece.end - piece.begin, Hop(-piece.distance, "ring"))
            for piece in pieces
            if piece.distance
        ]
        return tuple(Traffic("permute", 0, axis, elements, hop) for elements, hop in sent)

    return FactorRule.of(
        op, ins=[dims], outs=[dims], exchanged={dims[axis]: traffic}, linear=linear_sets(op, (0,))
    )


@rule_for("dynamic_roll")
def dynamic_roll(op: OpNode) -> FactorRule:
    """out[d..., k] = x[d..., (begin + k) mod n], begin clamped to 0..n; linear in x.

    Where k is split, shards go 1, 2, 4, ... devices round a ring or stay, as the digits of the distance say, and then
    to the neighbour. Of an x that is whole a device takes its part.
    """
    dims = [f"d{d}" for d in range(op.ins[0].ndim)]
    axis: int = op.params["dimension"]
    k = dims[axis]
    size = op.ins[0].shape[axis]

    def traffic(parts: int) -> tuple[Traffic, ...]:
        hops = (*ring_digits(parts), 1)
        return tuple(
            Traffic("permute", 0, axis, size // parts, Hop(-distance, "ring")) for distance in hops
        )

    linear = linear_sets(op, (0,))
    ring = FactorRule.of(
        op, ins=[dims, []], outs=[dims], exchanged={k: traffic}, offsets=[k], linear=linear
    )
    whole = ["v" if d == axis else name for d, name in enumerate(dims)]
    apart = FactorRule.of(
        op, ins=[whole, []], outs=[dims], frozen=["v"], offsets=[k], linear=linear
    )
    return _first_way([ring, apart])


def _subsets(dims: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """All subsets, the empty one first."""
    return chain.from_iterable(combinations(dims, n) for n in range(len(dims) + 1))


def _first_way(rules: Sequence[FactorRule]) -> FactorRule:
    """The first of several rules of one operator, with the others as further ways."""
    return replace(rules[0], ways=tuple(rules[1:]))


declare(
    "concatenate", "dynamic_roll", "pad", "rev", "roll", "slice", "splice", is_recomputable=True
)
declare("concatenate", "dynamic_roll", "roll", "splice", is_fusible=False)
declare("concatenate", "dynamic_roll", "pad", "splice", touches="as_written")
declare("pad", "roll", "slice", "splice", keeps_shards=True)
declare("slice", touches="slice", flops=sliced_flops)
