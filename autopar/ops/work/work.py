"""Work: how much an operator computes, and which tensors reach memory at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from math import prod

from autopar.core.dataflow import Use, uses_of
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.manual import BORDERS, COLLECTIVES, INDEX
from autopar.core.memo import once_per_graph
from autopar.core.mesh import DeviceMesh
from autopar.core.regions import BOUNDARY
from autopar.core.strategy import Strategy
from autopar.ops.work.exchanged import lengthening, sent_bytes
from autopar.ops.work.matrix_flops import MATRIX_FLOPS

VIEWS = BOUNDARY | {
    *COLLECTIVES,
    INDEX,
    *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "iota", "copy", "stop_gradient", "optimization_barrier"),
}
_REPEATING = frozenset({"broadcast_in_dim", "iota"})
_RESHAPING = frozenset({"reshape", "squeeze", "expand_dims"})
_REARRANGING = frozenset({*_RESHAPING, "transpose", "copy"})
SCALINGS = frozenset({"neg", "mul", "div"})
_UNFUSED = frozenset(
    {
        *MATRIX_FLOPS,
        *COLLECTIVES,
        *("call_exported", "core_map", "ffi_call", "pallas_call", "shard_map"),
        *("approx_top_k", "pmax", "pmin", "psum", "random_gamma", "rng_bit_generator", "scaled_dot"),
        *("dot_general", "conv_general_dilated", "sort", "top_k", "gather", "dynamic_update_slice"),
        *(
            "concatenate",
            "dynamic_roll",
            "roll",
            "splice",
            "argmax",
            "argmin",
            "cumsum",
            "cumprod",
            "cummax",
            "cummin",
            "cumlogsumexp",
            "fft",
        ),
        *(
            "threefry2x32",
            "cholesky",
            "triangular_solve",
            "lu",
            "geqrf",
            *BOUNDARY,
            "custom_call",
            "pure_callback",
        ),
    }
)
_UNFUSED_PREFIXES = ("reduce_", "scatter", "select_and_", "arg")
_EXPENSIVE = frozenset(
    {
        *("exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "div", "rem", "pow", "integer_pow", "sqrt"),
        *("rsqrt", "cbrt", "sin", "cos", "tan", "atan2", "erf", "erfc", "erf_inv", "lgamma", "digamma"),
    }
)


def work_flops(op: OpNode) -> float:
    """The floating-point operations of the whole operator.

    dot_general: 2 |batch| |m| |n| |k|     convolution: 2 |out| |window| |in channels per group|
    decompositions, solvers, transforms, products of groups: `matrix_work`
    borders of what a user splits by hand: none
    slices and gathers: one for every element of the result; updates of a slice: of the update
    otherwise one for every element of the larger of operands and results; views none; a function treated as one
    operator has those of all operators in it, as often as its loops run them
    """
    if op.body is not None:
        return sum(op.body.tree.weight(inner.region) * work_flops(inner) for inner in op.body.ops)
    return _FLOPS.get(op.kind, _elements)(op)


def is_fusible(op: OpNode) -> bool:
    """Whether a compiler computes the operator inside its consumers' loop: element by element, or a view."""
    return op.body is None and _fuses(op.kind) and not op.crosses_memories


def is_dear(op: OpNode) -> bool:
    """Whether a compiler would rather keep the result of `op` than compute it again; whole powers are products."""
    return op.kind in _EXPENSIVE and op.kind != "integer_pow"


@cache
def _fuses(kind: str) -> bool:
    return kind not in _UNFUSED and not kind.startswith(_UNFUSED_PREFIXES)


def is_view(op: OpNode) -> bool:
    """Whether `op` only rearranges the elements of its operand: linear, and it keeps every byte.

    A sum over dims of size 1, the transpose of a broadcast, is one too.
    """
    if op.kind == "reduce_sum":
        return op.ins[0].size_bytes == op.outs[0].size_bytes
    return op.kind in _REARRANGING


def passes_sums(op: OpNode) -> bool:
    """Whether an all-reduce of an operand may come behind `op` rather than before it, all else permitting."""
    return op.kind in SCALINGS or is_view(op)


def materialised(graph: OpGraph) -> frozenset[int]:
    """The ids of the tensors that are written to memory.

    Inputs, outputs, results of operators that are not fusible, and whatever is read by an operator that is neither that
    nor a reduction, or in several fused loops. The rest lives in registers inside one fused loop, however often it is
    read there; a reduction ends the loop that makes what it alone reads: the producer-consumer fusion that XLA does on
    every backend, without its multi-output and horizontal forms. What is recomputed counts as if it were not: it is
    written if it was before, both times.
    """
    return _fusion(graph)[0]


def loops(graph: OpGraph) -> tuple[int, ...]:
    """By operator: the last one of the fused loop that it runs in; itself where nothing that it gives is fused."""
    return _fusion(graph)[1]


@once_per_graph
def other_names(graph: OpGraph) -> frozenset[int]:
    """The ids of tensors that are others under another name, at the borders of what a user splits by hand.

    A result of the function is what it is made of; elsewhere what it is made of is the one that takes memory.
    """
    uses, kept = uses_of(graph), materialised(graph)
    inputs, results = ({tensor.id for tensor in side} for side in (graph.inputs, graph.outputs))
    found: set[int] = set()
    for op in graph.ops:
        if op.kind not in BORDERS or op.ins[0].id not in kept:
            continue
        (before,), (after,) = op.ins, op.outs
        if after.id not in results:
            found.add(after.id)
        elif before.id not in inputs | results and len(uses[before.id]) == 1:
            found.add(before.id)
    return frozenset(found)


@once_per_graph
def _fusion(graph: OpGraph) -> tuple[frozenset[int], tuple[int, ...]]:
    uses = _uses_without_recomputation(graph)
    found = {tensor.id for tensor in (*graph.inputs, *graph.outputs)} | _unstacked(graph)
    fuses = [is_fusible(op) for op in graph.ops]
    reads = [reads_fused(op) for op in graph.ops]
    loop = [*range(len(graph.ops))]
    for op in reversed(graph.ops):
        for tensor in op.outs:
            mine = uses.get(tensor.id, ()) if fuses[op.id] else ()
            readers = [use.op for use in mine if use.op is not None and reads[use.op]]
            into = {loop[reader] for reader in readers}
            region = graph.original(op).region
            is_near = len(mine) == 1 or all(graph.ops[reader].region == region for reader in readers)
            if len(readers) != len(mine) or len(into) != 1 or not is_near:
                found.add(tensor.id)
            elif len(op.outs) == 1:
                (loop[op.id],) = into
    return frozenset(found), tuple(loop)


@once_per_graph
def written_out(graph: OpGraph) -> frozenset[int]:
    """The ids of operators that only repeat or count what they are given, but whose results are written all the same.

    They are views to whoever computes in a loop, which takes the elements it wants from the operand; products, scatters
    and whatever else is no such loop read an array, and so does the caller.
    """
    uses, kept = uses_of(graph), materialised(graph)
    return frozenset(
        op.id
        for op in graph.ops
        if op.kind in _REPEATING
        and op.outs[0].id in kept
        and op.outs[0].size_bytes > sum(tensor.size_bytes for tensor in op.ins)
        and any(use.op is None or not reads_fused(graph.ops[use.op]) for use in uses.get(op.outs[0].id, ()))
    )


@once_per_graph
def recomputed(graph: OpGraph) -> frozenset[int]:
    """The ids of tensors with several uses that each of them may compute anew, so that the operands live on.

    Results of cheap fusible operators that only fusible operators and reductions read. Whether XLA keeps such a tensor
    or its operands depends on the fusions it comes upon; who wants an upper bound of memory counts both. What is kept
    for a recomputation is kept itself. What only sees in another shape what is kept has as many bytes as that: one of
    the two is enough; so is one of what is dear to compute and what is chosen of it by a mask.
    """
    found: set[int] = set()
    every, kept = uses_of(graph), materialised(graph)
    makers = {tensor.id: op for op in graph.ops for tensor in op.outs}
    for tensor, op in makers.items():
        uses = every.get(tensor, ())
        if len(uses) < 2 or not is_fusible(op) or op.kind in _EXPENSIVE:
            continue
        if op.kind in _RESHAPING and op.ins[0].id in kept and op.ins[0].id not in found:
            continue
        varied = _varied(op, makers)
        if len(varied) == 1 and varied[0].id not in kept and is_dear(makers[varied[0].id]):
            continue
        readers = [graph.ops[use.op] for use in uses if use.op is not None]
        held = op.recomputes is None and any(reader.recomputes is not None for reader in readers)
        if len(readers) == len(uses) and not held and all(map(reads_fused, readers)):
            found.add(tensor)
    return frozenset(found)


def _varied(op: OpNode, makers: Mapping[int, OpNode]) -> list[TensorInfo]:
    """The operands that are more than something small, repeated."""
    made = [(tensor, makers.get(tensor.id)) for tensor in op.ins if tensor.literal is None]
    return [tensor for tensor, maker in made if maker is None or maker.kind not in _REPEATING]


def _uses_without_recomputation(graph: OpGraph) -> Mapping[int, tuple[Use, ...]]:
    """The uses of every tensor if nothing were recomputed: what reads a result computed anew reads the original's.

    An operator that runs later instead stands for its original.
    """
    uses = uses_of(graph)
    if all(op.recomputes is None for op in graph.ops):
        return uses
    first = first_made(graph)
    found: dict[int, list[Use]] = {}
    for tensor, mine in uses.items():
        own = [use for use in mine if use.op is None or graph.ops[use.op].recomputes in (None, use.op)]
        found.setdefault(first.get(tensor, tensor), []).extend(own)
    return {tensor: tuple(found.get(first.get(tensor, tensor), ())) for tensor in (*uses, *first, *first.values())}


@once_per_graph
def first_made(graph: OpGraph) -> Mapping[int, int]:
    """For every result that is computed anew, by its id: the result that it stands for."""
    twins = [op for op in graph.ops if op.recomputes is not None]
    return {new.id: old.id for op in twins for old, new in zip(graph.original(op).outs, op.outs, strict=True)}


def _unstacked(graph: OpGraph) -> set[int]:
    """The ids of what a loop's body computes anew for others: it was stacked otherwise, so it was written."""
    in_loops = {t.id for op in graph.ops if op.recomputes is not None and op.region is not None for t in op.outs}
    return in_loops.intersection(t.id for op in graph.ops if op.recomputes is None for t in op.ins)


_WITH_WORKSPACE = ("conv_general_dilated", "select_and_scatter_add")


def workspace_bytes(op: OpNode, in_bytes: Sequence[int]) -> int:
    """What XLA holds while the operator runs, besides operands (of `in_bytes` on one device) and results.

    A convolution: both operands once more, in the order of dims that its kernel wants. The scatter of max pooling's
    gradient: for each dim an array of indices as large as both operands. Measured on CPU. A function treated as one
    operator: what is alive inside it, its operands' share of the whole. Otherwise nothing.
    """
    if op.kind == "conv_general_dilated":
        return sum(in_bytes)
    if op.kind == "select_and_scatter_add":
        return len(op.ins[0].shape) * sum(in_bytes)
    if op.body is not None:
        whole = sum(tensor.size_bytes for tensor in op.ins)
        return int(_body_peak_bytes(op.body) * sum(in_bytes) / whole) if whole else _body_peak_bytes(op.body)
    return 0


def beside_bytes(op: OpNode, strategy: Strategy, mesh: DeviceMesh, read: Sequence[bool]) -> int:
    """What a device holds while it runs the operator so, besides operands and results.

    Workspace; what it sends and receives; a copy of an operand for every group of devices it is lengthened over.
    `read` says which operands are read from memory; the others take none.
    """
    if not strategy.exchanges and op.body is None and op.kind not in _WITH_WORKSPACE:
        return 0
    placed = zip(op.ins, strategy.ins, read, strict=True)
    sizes = [placement.local_size(t.shape, mesh) * t.itemsize * is_read for t, placement, is_read in placed]
    lengthened = {
        (op.ins[e.tensor].id, strategy.ins[e.tensor], e.axes): sizes[e.tensor]
        for e in lengthening(op, strategy, mesh)
        if e.tensor < len(sizes)
    }
    return workspace_bytes(op, sizes) + sum(lengthened.values()) + sent_bytes(op, strategy.exchanges)


@lru_cache(maxsize=1024)
def _body_peak_bytes(body: OpGraph) -> int:
    """The most bytes that tensors within the body take at once, run whole: without its inputs and outputs."""
    uses, in_memory = uses_of(body), materialised(body)
    boundary = {tensor.id for tensor in (*body.inputs, *body.outputs)}
    change = [0] * (len(body.ops) + 1)
    for op in body.ops:
        for tensor in op.outs:
            if tensor.id in in_memory and tensor.id not in boundary:
                last = uses[tensor.id][-1].time if tensor.id in uses else op.id
                change[op.id] += tensor.size_bytes
                change[last + 1] -= tensor.size_bytes
    peak = live = 0
    for step in change:
        live += step
        peak = max(peak, live)
    return peak


def reads_fused(op: OpNode) -> bool:
    """Whether a compiler computes what the operator reads inside its own loop."""
    return is_fusible(op) or op.kind.startswith("reduce_")


def _elements(op: OpNode) -> float:
    if op.kind in VIEWS:
        return 0.0
    return float(max((prod(tensor.shape) for tensor in (*op.ins, *op.outs)), default=0))


def _dot_general(op: OpNode) -> float:
    contracting: tuple[int, ...] = op.params["dimension_numbers"][0][0]
    return 2.0 * prod(op.outs[0].shape) * prod(op.ins[0].shape[d] for d in contracting)


def _convolution(op: OpNode) -> float:
    kernel = op.ins[1].shape
    layout: tuple[int, ...] = op.params["dimension_numbers"]["rhs_spec"]
    return 2.0 * prod(op.outs[0].shape) * prod(kernel) / max(1, kernel[layout[0]])


def _sliced(op: OpNode) -> float:
    return float(prod(op.outs[0].shape))


def _updated(op: OpNode) -> float:
    return float(prod(op.ins[1].shape))


def _stated_flops(op: OpNode) -> float:
    """Those that the author of a kernel states; none if nothing is stated."""
    stated = _stated(op)
    return 0.0 if stated is None else float(stated["flops"] + stated["transcendentals"])


def stated_bytes(op: OpNode) -> float | None:
    """What the author of a kernel says that it reads and writes; None if nothing is stated."""
    stated = _stated(op)
    return None if stated is None else float(stated["bytes_accessed"])


def has_no_price(op: OpNode) -> bool:
    """Whether nobody but its author can look into `op`, or what it consists of, and what it costs is not stated."""
    if op.body is not None:
        return any(map(has_no_price, op.body.ops))
    return op.kind == "shard_map" or (op.kind == "pallas_call" and _stated(op) is None)


def _stated(op: OpNode) -> Mapping[str, int] | None:
    return op.params.get("cost_estimate") if op.kind == "pallas_call" else None


def _none(_op: OpNode) -> float:
    return 0.0


_FLOPS: dict[str, Callable[[OpNode], float]] = {
    **dict.fromkeys(BORDERS, _none),
    **MATRIX_FLOPS,
    **dict.fromkeys(("slice", "dynamic_slice", "gather"), _sliced),
    "dynamic_update_slice": _updated,
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
    "pallas_call": _stated_flops,
    "scaled_dot": _dot_general,
}
