"""Rules of attention: means of values, weighted by the softmax of queries times keys; and of cuDNN's kernels for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

from autopar.core.graph import OpNode, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Strategy
from autopar.ops.rules.derived import DERIVATION, VJP
from autopar.ops.rules.factor_rule import Dim, Factor, FactorRule
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import Rule, rule_for, whole
from autopar.ops.rules.ring import RingTraffic
from autopar.ops.traits import declare

FORWARD = "dot_product_attention_fwd"
BACKWARD = "dot_product_attention_bwd"
"""The kernels of cuDNN, by the names of JAX's primitives."""
ATTENTION = (FORWARD, BACKWARD)

_HEAD: Dim = ("k", "g")
_FACTORS: dict[str, tuple[Dim, ...]] = {
    "query": (("b",), ("t",), _HEAD, ("h",)),
    "key": (("b",), ("s",), ("k",), ("h",)),
    "value": (("b",), ("s",), ("k",), ("e",)),
    "bias": (("b",), _HEAD, ("t",), ("s",)),
    "scale": (),
    "positions": (("t",),),
    "heads": (_HEAD,),
    "query_seq_lengths": (("b",),),
    "key_value_seq_lengths": (("b",),),
    "output": (("b",), ("t",), _HEAD, ("e",)),
    "residual": (("b",), ("t",), _HEAD),
    "sums": (("b",), _HEAD, ("t",)),
}
"""The factors of each operand and result: batch b, queries t, keys s, key heads k, queries of each g, features h, e."""
_WHOLE = frozenset({"s", "h", "e"})
_ALL_KEYS = "all k"
_KEYS = ("key", "value")
_IN_BLOCKS = frozenset({"query", "key", "value", "scale", "positions", "heads", "output"})
_FLOAT32_BYTES = 4
_VJP = "attention" + VJP


class _Sizes(NamedTuple):
    """The sizes of the factors."""

    b: int
    t: int
    s: int
    k: int
    g: int
    h: int
    e: int


def attention_rule(op: OpNode) -> FactorRule:
    """q[b, t, (k g), h], k[b, s, k, h], v[b, s, k, e], bias, mask[b, (k g), t, s] -> y[b, t, (k g), e]; s, h, e whole.

    Biases and masks are broadcast where they are 1. Queries know their `positions[t]`, by which a causal mask, a window
    and lengths are told, and their `heads[(k g)]`, by which they take their key heads from all; linear in none.
    """
    names = [_named(name) for name in op.params["arguments"]]
    results = ["output", "residual"][: len(op.outs)]
    shapes = dict(zip(names, op.ins, strict=True))
    return _rules(op, names, results, _sizes(shapes["query"], shapes["key"], shapes["value"]))


def attention_vjp_rule(follows: Rule, op: OpNode) -> FactorRule:
    """As it `follows` from `attention_rule`; and round a ring, where the gradients of q, k and v are asked for."""
    rule = follows(op)
    (step, *before) = reversed(op.params[DERIVATION])
    if before or step[:3] != ("vjp", (0, 1, 2), (0,)):
        return rule
    names = [*map(_named, op.params["arguments"]), "output"]
    sizes = _sizes(*op.ins[:3])
    if not _goes_round(op, names, sizes):
        return rule

    ring = partial(_rule, op, names, ["query", "key", "value"], sizes, (len(names) - 1,), ring=True)
    ways = [ring(), ring(whole_keys=True)] if sizes.g > 1 and sizes.k > 1 else [ring()]
    return replace(rule, ways=(*rule.ways, *ways))


def _named(argument: str) -> str:
    """The factors of a mask are those of a bias."""
    return "bias" if argument == "mask" else argument


@rule_for(FORWARD, yields=True)
def forward_kernel(op: OpNode) -> FactorRule:
    """q[b, t, (k g), h], k[b, s, k, h], v[b, s, k, e] -> y[b, t, (k g), e], and sums[b, (k g), t] of its rows.

    s, h and e are whole, and t where the kernel counts queries in a window, by lengths or along a bias. With a causal
    mask it need not be: a device asks for the keys before its queries and for those beside them, and knows where it
    begins. Of as many keys as queries, without a bias, lengths and a window, s may be split as t is: keys and values go
    round a ring. Whole is what is packed or paged.
    """
    names = _operands(op)
    if names is None:
        return whole(op)
    query, key, value = (_as_btnh(op, tensor) for tensor in op.ins[:3])
    return _rules(op, names, ["output", "sums"][: len(op.outs)], _sizes(query, key, value))


@rule_for(BACKWARD, yields=True)
def backward_kernel(op: OpNode) -> FactorRule:
    """As forwards, with sums, y and dy -> dq, dk, dv, dbias; a split t or g leaves dk and dv unreduced; linear in dy.

    dy[b, t, (k g), e], y and sums[b, (k g), t] are read; what a bias repeats is summed up in dbias.
    """
    names = _operands(op)
    if names is None:
        return whole(op)
    query, key, value = (_as_btnh(op, tensor) for tensor in op.ins[:3])
    results = ["query", "key", "value", "bias"][: len(op.outs)]
    return _rules(op, names, results, _sizes(query, key, value), linear=(12,))


def _operands(op: OpNode) -> list[str] | None:
    """What the operands of a kernel are, those without elements None; None if it is packed, paged or modified."""
    names = ["query", "key", "value", "bias", "query_seq_lengths", "key_value_seq_lengths"]
    after = ["sums", "output", "output"] if op.kind == BACKWARD else []
    rest = op.ins[6:10]
    if any(tensor.ndim > 1 or tensor.shape != (0,) for tensor in rest):
        return None
    if len(op.ins) != 10 + len(after):
        return None
    return [*names, "", "", "", "", *after]


def _rules(
    op: OpNode,
    names: Sequence[str],
    results: Sequence[str],
    sizes: _Sizes,
    linear: tuple[int, ...] = (),
) -> FactorRule:
    """The rule, and its other ways.

    Where heads share key heads: with all key heads on every device, which takes those of its own. Where as many keys
    as queries are counted by a causal mask or not at all: with these split as queries are, going round in a ring.
    """
    makes = [partial(_rule, op, names, results, sizes, linear)]
    if sizes.g > 1 and sizes.k > 1:
        makes.append(partial(makes[0], whole_keys=True))
    if _goes_round(op, names, sizes):
        makes += [partial(make, ring=True) for make in makes]
    first, *ways = (make() for make in makes)
    return replace(first, ways=tuple(ways))


def _rule(
    op: OpNode,
    names: Sequence[str],
    results: Sequence[str],
    sizes: _Sizes,
    linear: tuple[int, ...],
    *,
    whole_keys: bool = False,
    ring: bool = False,
) -> FactorRule:
    counts = _counts_queries(op)
    divides = _divides_queries(op)
    frozen = set(_WHOLE | ({"t"} if counts and not divides else set[Factor]()))
    sides: list[list[Dim]] = []
    for place, (name, tensor) in enumerate(
        zip((*names, *results), (*op.ins, *op.outs), strict=True)
    ):
        dims = _dims(op, name, tensor, place, sizes)
        dims = [_of_all_keys(dim) for dim in dims] if whole_keys else dims
        sides.append([("t",) if dim == ("s",) else dim for dim in dims] if ring else dims)
        frozen |= {factor for dim in dims for factor in dim if "." in factor}

    ins = sides[: len(names)]
    outs = sides[len(names) :]
    extents = {**sizes._asdict(), "n": sizes.k * sizes.g}
    heads = ["n"] if whole_keys else ["k", "g"]
    lacking = {
        factor
        for dims in outs
        for factor in ("b", "t", *heads)
        if factor not in frozen and extents[factor] != 1 and all(factor not in dim for dim in dims)
    }
    offsets = {*(["t"] if divides else []), *(["n"] if whole_keys and op.kind in ATTENTION else [])}
    rule = FactorRule.of(
        op,
        ins=ins,
        outs=outs,
        sizes={f: size for f, size in extents.items() if f not in ("k", "g", "n") or f in heads},
        reduced=dict.fromkeys(sorted(lacking), "sum"),
        frozen=frozen | {_ALL_KEYS},
        linear=linear_sets(op, linear) if linear else (),
        offsets=offsets,
        exchanged={"t": _around(op, names, results, sides)} if ring else {},
    )
    return replace(rule, split=frozenset({"t"})) if ring else rule


def _around(
    op: OpNode, names: Sequence[str], results: Sequence[str], sides: Sequence[Sequence[Dim]]
) -> RingTraffic:
    """What is sent where queries, keys and values are split along their places."""
    every = [*names, *results]
    places = [
        (tensor, list(dims).index(("t",)))
        for tensor, dims in enumerate(sides)
        if ("t",) in dims and every[tensor] != "positions"
    ]
    entering = [place for place in places if place[0] < len(names)]
    leaving = [place for place in places if place[0] >= len(names)]

    return RingTraffic(
        op.ins[entering[0][0]].shape[entering[0][1]],
        _counts_queries(op) or bool(op.params.get("is_causal")),
        entering,
        [place for place in entering if names[place[0]] in _KEYS] * (2 if op.kind == _VJP else 1),
        [place for place in leaving if results[place[0] - len(names)] in _KEYS],
        leaving,
        max(_FLOAT32_BYTES, op.ins[0].itemsize),
    )


def _goes_round(op: OpNode, names: Sequence[str], sizes: _Sizes) -> bool:
    """Whether it can be asked for blocks of keys one after another, and the results be put together."""
    if sizes.t != sizes.s:
        return False
    if op.kind not in ATTENTION:
        is_plain = op.params["local_window_size"] is None and not op.params["return_residual"]
        return is_plain and _IN_BLOCKS.issuperset(names) and "scale" in names
    return (
        (_divides_queries(op) or not _counts_queries(op))
        and op.ins[3].shape == (0,)
        and op.params["dropout_rate"] == 0
    )


def _of_all_keys(dim: Dim) -> Dim:
    """A dim where heads are one factor, and key heads are whole."""
    return {_HEAD: ("n",), ("k",): (_ALL_KEYS,)}.get(dim, dim)


def _dims(op: OpNode, name: str, tensor: TensorInfo, place: int, sizes: _Sizes) -> list[Dim]:
    """The factors of each dim of an operand or result; those that are repeated or not there have one of their own."""
    if not name or tensor.shape == (0,):
        return [(f"{place}.{dim}",) for dim in range(tensor.ndim)]
    dims = list(_FACTORS[name])
    if name in ("query", "key", "value", "output") and _is_heads_first(op):
        dims[1], dims[2] = dims[2], dims[1]
    size_of = sizes._asdict()
    for dim, size in enumerate(tensor.shape):
        if size == 1 != prod(size_of[factor] for factor in dims[dim]):
            dims[dim] = (f"{place}.{dim}",)
    return dims


def _sizes(query: TensorInfo, key: TensorInfo, value: TensorInfo) -> _Sizes:
    """Of tensors [batch, place, heads, features]."""
    b, t, n, h = query.shape
    _, s, k, _ = key.shape
    return _Sizes(b, t, s, k, n // k, h, value.shape[3])


def _is_heads_first(op: OpNode) -> bool:
    """Whether heads come before places, as in the second of cuDNN's layouts."""
    return op.params.get("layout", 0) == 1


def _as_btnh(op: OpNode, tensor: TensorInfo) -> TensorInfo:
    b, n, t, h = tensor.shape
    return replace(tensor, shape=(b, t, n, h)) if _is_heads_first(op) else tensor


def _counts_queries(op: OpNode) -> bool:
    """Whether a kernel tells by a query's number what it sees."""
    return op.params.get("mask_type", "NO_MASK") != "NO_MASK" or (
        op.params.get("sliding_window_length") is not None
    )


def _divides_queries(op: OpNode) -> bool:
    """Whether what a kernel counts is a causal mask alone, which can be told on some of the queries."""
    if op.params.get("mask_type") != "CAUSAL" or op.params.get("sliding_window_length") is not None:
        return False
    query, key = (_as_btnh(op, tensor) for tensor in op.ins[:2])
    return query.shape[1] == key.shape[1] and op.ins[3].shape == (0,)


def slowest(op: OpNode, strategy: Strategy, mesh: DeviceMesh) -> float:
    """How many times as much as the mean the device does that does most: of a causal mask that with the last queries.

    (1 - t / (2 T)) / (1 / 2)          t queries of T

    In a ring all do as much, by zigzag order.
    """
    if op.kind not in ATTENTION or not _divides_queries(op) or strategy.exchanges:
        return 1.0
    parts = mesh.product(dict(strategy.factors).get("t", ()))
    return 2.0 - 1.0 / parts


def _flops(op: OpNode) -> float:
    """Two products of matrices forwards, five backwards, of each query with the keys that it sees."""
    query, key, value = (_as_btnh(op, tensor) for tensor in op.ins[:3])
    sizes = _sizes(query, key, value)
    features = 3 * sizes.h + 2 * sizes.e if op.kind == BACKWARD else sizes.h + sizes.e
    return 2.0 * sizes.b * sizes.k * sizes.g * features * _seen(op, sizes.t, sizes.s)


def _seen(op: OpNode, t: int, s: int) -> float:
    """How many pairs of a query and a key there are: all, those up to a query's own place, or those in its window."""
    window = op.params.get("sliding_window_length")
    if window is None and "CAUSAL" not in op.params.get("mask_type", ""):
        return float(t * s)
    most = min(s, t if window is None else window)
    return most * (most + 1) / 2.0 + max(0, t - most) * float(most)


declare(FORWARD, BACKWARD, is_fusible=False, flops=_flops)
declare(FORWARD, is_recomputable=True)
