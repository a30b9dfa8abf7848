"""Fusion: which tensors reach memory at all, and which operators run as one loop."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.core.dataflow import Use, uses_of
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.manual import BORDERS
from autopar.core.memo import once_per_graph
from autopar.core.regions import RegionTree
from autopar.ops.traits import is_fusible, reads_fused, traits_of


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
    uses = uses_of(graph)
    kept = materialised(graph)
    inputs, results = ({tensor.id for tensor in side} for side in (graph.inputs, graph.outputs))
    found: set[int] = set()
    for op in graph.ops:
        if op.kind not in BORDERS or op.ins[0].id not in kept:
            continue
        (before,) = op.ins
        (after,) = op.outs
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
            is_near = len(mine) == 1 or all(
                graph.ops[reader].region == region for reader in readers
            )
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
    uses = uses_of(graph)
    kept = materialised(graph)

    return frozenset(
        op.id
        for op in graph.ops
        if traits_of(op.kind).rearranges == "repeats"
        and op.outs[0].id in kept
        and op.outs[0].size_bytes > sum(tensor.size_bytes for tensor in op.ins)
        and any(
            use.op is None or not reads_fused(graph.ops[use.op])
            for use in uses.get(op.outs[0].id, ())
        )
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
    every = uses_of(graph)
    kept = materialised(graph)
    makers = {tensor.id: op for op in graph.ops for tensor in op.outs}
    for tensor, op in makers.items():
        uses = every.get(tensor, ())
        if len(uses) < 2 or not is_fusible(op) or traits_of(op.kind).is_costly:
            continue
        if (
            traits_of(op.kind).rearranges == "reshapes"
            and op.ins[0].id in kept
            and op.ins[0].id not in found
        ):
            continue
        varied = _varied(op, makers)
        if (
            len(varied) == 1
            and varied[0].id not in kept
            and traits_of(makers[varied[0].id].kind).is_dear
        ):
            continue
        readers = [graph.ops[use.op] for use in uses if use.op is not None]
        held = any(_is_kept_for(op, reader, graph.tree) for reader in readers)
        if len(readers) == len(uses) and not held and all(map(reads_fused, readers)):
            found.add(tensor)

    return frozenset(found)


def _is_kept_for(op: OpNode, reader: OpNode, tree: RegionTree) -> bool:
    """Whether an operator computes for a recomputation, its plan's or its user's, what that reads behind a barrier."""
    if op.recomputes is None and reader.recomputes is not None:
        return True
    entered = set(tree.path(reader.region)).difference(tree.path(op.region))
    return any(tree.kind(region) == "remat" for region in entered)


def _varied(op: OpNode, makers: Mapping[int, OpNode]) -> list[TensorInfo]:
    """The operands that are more than something small, repeated."""
    made = [(tensor, makers.get(tensor.id)) for tensor in op.ins if tensor.literal is None]
    return [
        tensor
        for tensor, maker in made
        if maker is None or traits_of(maker.kind).rearranges != "repeats"
    ]


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
        own = [
            use for use in mine if use.op is None or graph.ops[use.op].recomputes in (None, use.op)
        ]
        found.setdefault(first.get(tensor, tensor), []).extend(own)

    return {
        tensor: tuple(found.get(first.get(tensor, tensor), ()))
        for tensor in (*uses, *first, *first.values())
    }


@once_per_graph
def first_made(graph: OpGraph) -> Mapping[int, int]:
    """For every result that is computed anew, by its id: the result that it stands for."""
    twins = [op for op in graph.ops if op.recomputes is not None]
    return {
        new.id: old.id
        for op in twins
        for old, new in zip(graph.original(op).outs, op.outs, strict=True)
    }


def _unstacked(graph: OpGraph) -> set[int]:
    """The ids of what a loop's body computes anew for others: it was stacked otherwise, so it was written."""
    in_loops = {
        t.id
        for op in graph.ops
        if op.recomputes is not None and op.region is not None
        for t in op.outs
    }
    return in_loops.intersection(t.id for op in graph.ops if op.recomputes is None for t in op.ins)
