"""Rule of the discrete Fourier transform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise, permutations
from math import gcd, log2, prod

from autopar.core.graph import OpNode
from autopar.ops.rules.factor_rule import Factor, FactorRule, Traffic, TrafficOf
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare


@rule_for("fft")
def fft(op: OpNode) -> FactorRule:
    """out[b..., q...] = sum over p of exp(-2 pi i p q / n) x[b..., p...]; linear in x.

    A dim is whole while it is transformed. Where one of several is split, devices exchange it for another one, by an
    all-to-all, that has been transformed: the result is split along that one, or all is exchanged back.
    """
    plain = _split(op, {}, {})
    if len(op.params["fft_lengths"]) == 1 or 0 in (*op.ins[0].shape, *op.outs[0].shape):
        return plain
    exchanged = [_split(op, moves, dict.fromkeys(moves, _sent_once(op))) for moves in _moves(op)]
    return replace(plain, ways=(*exchanged, _there_and_back(op)))


def _moves(op: OpNode) -> Iterator[dict[int, int]]:
    """From each dim into which one its split may go: along a path of dims, of which the last is transformed first.

    The dim of real numbers is transformed first if it is there before, and last if it is there after.
    """
    count = len(op.params["fft_lengths"])
    kind = op.params["fft_type"]
    for path in permutations(range(count)):
        ends = {"RFFT": path[-1], "IRFFT": path[0]}
        if ends.get(kind, count - 1) == count - 1:
            yield dict(pairwise(path))


def _sent_once(op: OpNode) -> TrafficOf:
    """All that a device holds, as complex numbers."""
    return lambda _: (Traffic("all_to_all", _complex(op), None, 1),)


def _there_and_back(op: OpNode) -> FactorRule:
    """Every dim but the last stays split: it is exchanged for the last one, which is filled up, and back."""
    tensor = _complex(op)
    *_, size = (*op.ins, *op.outs)[tensor].shape
    last = op.ins[0].ndim - 1

    def sent(parts: int) -> tuple[Traffic, ...]:
        return (Traffic("all_to_all", tensor, last, -(-size // parts) * parts),) * 2

    stays = {d: d for d in range(len(op.params["fft_lengths"]) - 1)}
    return _split(op, stays, dict.fromkeys(stays, sent))


def _complex(op: OpNode) -> int:
    """Which of operand and result is of complex numbers, if only one is; the result, if both are."""
    return 0 if op.params["fft_type"] == "IRFFT" else 1


def _split(op: OpNode, moves: Mapping[int, int], sent: Mapping[int, TrafficOf]) -> FactorRule:
    """The rule where the split of a transformed dim goes into another one, or stays; all others are whole."""
    count = len(op.params["fft_lengths"])
    first = op.ins[0].ndim - count
    sizes: dict[Factor, int] = {}
    before, after = ([[f"{name}{d}"] for d in range(count)] for name in "pq")
    for d, into in moves.items():
        size = op.ins[0].shape[first + d]
        other = op.outs[0].shape[first + into]
        common = sizes[f"s{d}"] = gcd(size, other)
        sizes |= {f"p{d}": size // common, f"q{into}": other // common}
        before[d].insert(0, f"s{d}")
        after[into].insert(0, f"s{d}")

    batch = [f"b{d}" for d in range(first)]
    return FactorRule.of(
        op,
        ins=[[*batch, *before]],
        outs=[[*batch, *after]],
        sizes=sizes,
        frozen=[f"{name}{d}" for d in range(count) for name in "pq"],
        exchanged={f"s{d}": traffic for d, traffic in sent.items()},
        linear=linear_sets(op, (0,)),
    )


def _fft_flops(op: OpNode) -> float:
    """5 N log2 n for N elements, n of them transformed together."""
    larger = max(op.ins[0].shape, op.outs[0].shape, key=prod)
    transformed = prod(op.params["fft_lengths"])
    return 5.0 * prod(larger) * log2(max(transformed, 2))


declare("fft", is_fusible=False, is_recomputable=True, flops=_fft_flops)
