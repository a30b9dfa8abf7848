"""Fusion: which tensors reach memory at all, and which operators run as one loop.

What every backend of XLA does is `PLAIN`. What some do otherwise a `Fusing` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from autopar.core.dataflow import Use, uses_of
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.manual import BORDERS
from autopar.core.memo import once_per_graph
from autopar.core.regions import RegionTree
from autopar.ops.traits import is_fusible, reads_fused, traits_of


@dataclass(frozen=True)
class Fusing:
    """What a compiler fuses beside chains that work element by element.

    * `row_elements`: a reduction over the last dim is part of the loop that reads its result, if rows are no longer:
      scale, mask, max, sub, exp, sum and div of a softmax are one kernel, and so is a norm. 0: none are.
    * `anew`: what several loops read is computed in each of them from what it is made of, where fewer bytes are moved.
    * `dear`: how many bytes are moved while one element is computed, by the kinds of operators that take long: they
      count as these bytes.
    * `into_products`: the product of matrices before it does what is done to its result alone: a bias or another array
      is added, the last two dims are swapped. A wider type is left to whoever reads it.
    * `caches`: what reading an array once more takes, as a share of reading it from memory, by how many bytes it has
      less than, smallest first; all of it where it has more. (): nothing is read again.
    * `moving`: the `moving_way`s that it computes in the loop that reads them, beside those that every backend does.
    * `moving_written`: those that are in a loop, but whose operands are written before.
    * `moving_alone`: those that are in no loop.
    * `borders`: what is read in a loop, a branch or a rematerialised block that it is not made in is written, and so is
      what repeats; but for a constant, which is made there.
    * `sinks`: what repeats is made where it is read all the same.
    * `loop_bytes`: a loop takes for each element as long as moving so many bytes more than it reads and writes, unless
      it writes elements of as many.
    """

    row_elements: int = 0
    anew: bool = False
    dear: tuple[tuple[str, float], ...] = ()
    into_products: bool = False
    caches: tuple[tuple[int, float], ...] = ()
    moving: frozenset[str] = frozenset()
    moving_written: frozenset[str] = frozenset()
    moving_alone: frozenset[str] = frozenset()
    borders: bool = False
    sinks: bool = False
    loop_bytes: int = 0


PLAIN = Fusing()


def materialised(graph: OpGraph, fusing: Fusing = PLAIN) -> frozenset[int]:
    """The ids of the tensors that are written to memory.

    Inputs, outputs, results of operators that are not fusible, and whatever is read by an operator that is neither that
    nor a reduction, or in several fused loops. The rest lives in registers inside one fused loop, however often it is
    read there; a reduction ends the loop that makes what it alone reads: the producer-consumer fusion that XLA does on
    every backend, without its multi-output and horizontal forms. What is recomputed counts as if it were not: it is
    written if it was before, both times. See `Fusing` for what some compilers do beside.
    """
    return _fusion(graph, fusing)[0]


def loops(graph: OpGraph, fusing: Fusing = PLAIN) -> tuple[tuple[int, ...], ...]:
    """By operator: the last ones of the fused loops that it runs in; itself where nothing that it gives is fused.

    They are several only of what is computed `anew`.
    """
    return _fusion(graph, fusing)[1]


@once_per_graph
def own_loops(graph: OpGraph, fusing: Fusing, counting: Fusing) -> tuple[int, ...]:
    """By operator in how many loops it runs; what runs once more shares the `loops` of its original with that.

    A twin runs where it is read. So its original runs only where that is read still, if both are there or none: what
    takes no memory by `counting` is not kept. Twins that need not be there make no loop more.
    """
    every = loops(graph, fusing)
    if all(op.recomputes is None for op in graph.ops):
        return tuple(map(len, every))

    uses = uses_of(graph)
    kept = materialised(graph, fusing)
    taking = in_memory(graph, counting)
    repeated = {op.recomputes for op in graph.ops if op.recomputes not in (None, op.id)}
    own: list[set[int]] = [set() for _ in graph.ops]
    surely: list[set[int]] = [set() for _ in graph.ops]
    for op in reversed(graph.ops):
        if len(op.outs) != 1 or op.outs[0].id in kept:
            own[op.id] = {graph.original(op).id}
            continue
        readers = [graph.ops[use.op] for use in uses.get(op.outs[0].id, ()) if use.op is not None]
        sure = [reader for reader in readers if _is_sure(op, reader, kept)]
        own[op.id] = {loop for reader in sure or readers for loop in own[reader.id]}
        surely[op.id] = own[op.id] if sure else set()
        is_original = op.id in repeated and op.outs[0].id in taking
        if op.recomputes is None and (is_original or not readers):
            own[op.id] = {*every[op.id]}

    for op in graph.ops:
        if op.recomputes is not None and op.recomputes != op.id:
            own[op.id] = own[op.id] - (surely[op.id] & surely[op.recomputes])
    return tuple(map(len, own))


def _is_sure(op: OpNode, reader: OpNode, kept: frozenset[int]) -> bool:
    """Whether `reader` is there whatever is recomputed, if `op` is: what is not written always runs once more."""
    if reader.recomputes is None:
        return True
    return op.recomputes is not None and all(tensor.id not in kept for tensor in reader.outs)


def moving_way(op: OpNode) -> str:
    """The kind of an operator, before it "strided" if it skips elements of its operand, "spread" if it pads between."""
    if op.kind == "slice" and any(stride > 1 for stride in op.params.get("strides") or ()):
        return "strided slice"
    if op.kind == "pad" and any(between > 0 for _, _, between in op.params["padding_config"]):
        return "spread pad"
    return op.kind


def fuses(op: OpNode, fusing: Fusing) -> bool:
    """Whether a compiler computes `op` inside its readers' loop."""
    way = moving_way(op)
    return (is_fusible(op) or way in fusing.moving) and way not in fusing.moving_alone


def computes_read(op: OpNode, fusing: Fusing) -> bool:
    """Whether a compiler computes what `op` reads inside its own loop."""
    way = moving_way(op)
    if way in fusing.moving_written or way in fusing.moving_alone:
        return False
    return reads_fused(op) or way in fusing.moving


@once_per_graph
def in_products(graph: OpGraph, fusing: Fusing) -> frozenset[int]:
    """The ids of the operators that products of matrices do on their results (`Fusing.into_products`)."""
    if not fusing.into_products:
        return frozenset()

    uses = uses_of(graph)
    found: set[int] = set()
    for op in graph.ops:
        if op.kind != "dot_general" and op.id not in found:
            continue
        mine = uses.get(op.outs[0].id, ())
        reader = graph.ops[mine[0].op] if len(mine) == 1 and mine[0].op is not None else None
        if reader is not None and reader.region == op.region and _joins_product(graph, reader):
            found.add(reader.id)

    return frozenset(found)


@once_per_graph
def in_memory(graph: OpGraph, fusing: Fusing = PLAIN) -> frozenset[int]:
    """The ids of the tensors that take memory: what is written, but for results that products do more to."""
    absorbed = in_products(graph, fusing)
    more = {tensor.id for op in graph.ops if op.id in absorbed for tensor in op.ins}
    return materialised(graph, fusing) - {
        op.outs[0].id for op in graph.ops if op.kind == "dot_general" and op.outs[0].id in more
    }


@once_per_graph
def rows(graph: OpGraph, fusing: Fusing) -> frozenset[int]:
    """The ids of the reductions over rows that their readers' loop computes (`Fusing.row_elements`).

    What they read comes to them through no transpose: another kernel reads that in tiles.
    """
    come_turned, _ = turned(graph, fusing)
    return frozenset(
        op.id
        for op in graph.ops
        if fusing.row_elements
        and _is_row(op, fusing.row_elements)
        and come_turned.isdisjoint([tensor.id for tensor in op.ins])
    )


@once_per_graph
def turned(graph: OpGraph, fusing: Fusing) -> tuple[frozenset[int], frozenset[int]]:
    """The ids of what loops make through a transpose (`Fusing.row_elements`), and of these what is made of arrays that
    come through none as well.

    Of the former another kernel reduces rows, by columns of what it is made of. The latter are made in tiles, which no
    reduction joins. What repeats smaller arrays comes as it is wanted.
    """
    through: set[int] = set()
    straight = {tensor.id for tensor in graph.inputs}
    absorbed = in_products(graph, fusing)
    for op in graph.ops if fusing.row_elements else ():
        outs = [tensor.id for tensor in op.outs]
        if not outs:
            continue
        ins = [tensor.id for tensor in op.ins if prod(tensor.shape) == prod(op.outs[0].shape)]
        if not is_fusible(op) or op.id in absorbed or _is_surely_written(graph, fusing, op):
            straight.update(outs)
        elif _reorders(op):
            through.update(outs)
        elif traits_of(op.kind).rearranges != "repeats":
            through.update(() if through.isdisjoint(ins) else outs)
            straight.update(() if straight.isdisjoint(ins) else outs)

    return frozenset(through), frozenset(through & straight)


def _is_surely_written(graph: OpGraph, fusing: Fusing, op: OpNode) -> bool:
    """Whether somebody reads what `op` makes who computes in no loop."""
    uses = [use.op for tensor in op.outs for use in uses_of(graph).get(tensor.id, ())]
    return any(use is None or not computes_read(graph.ops[use], fusing) for use in uses)


def _is_row(op: OpNode, row_elements: int) -> bool:
    return (
        op.kind.startswith("reduce_")
        and tuple(op.params.get("axes", ())) == (op.ins[0].ndim - 1,)
        and op.ins[0].shape[-1] <= row_elements
    )


def _reorders(op: OpNode) -> bool:
    """Whether `op` puts dims in another order, of which there are several with more than one element."""
    if op.kind != "transpose":
        return False
    order = [dim for dim in op.params["permutation"] if op.ins[0].shape[dim] > 1]
    return order != sorted(order)


@once_per_graph
def other_names(graph: OpGraph, fusing: Fusing) -> frozenset[int]:
    """The ids of tensors that are others under another name, at the borders of what a user splits by hand.

    A result of the function is what it is made of; elsewhere what it is made of is the one that takes memory.
    """
    uses = uses_of(graph)
    kept = materialised(graph, fusing)
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
def _fusion(graph: OpGraph, fusing: Fusing) -> tuple[frozenset[int], tuple[tuple[int, ...], ...]]:
    uses = _uses_without_recomputation(graph)
    kept = {tensor.id for tensor in (*graph.inputs, *graph.outputs)} | _unstacked(graph)
    found = _written(graph, fusing, uses, kept)
    if fusing.anew:
        found -= _made_anew(graph, fusing, uses, kept, found)
    return frozenset(found), _loops(graph, uses, found)


def _written(
    graph: OpGraph, fusing: Fusing, uses: Mapping[int, Sequence[Use]], kept: set[int]
) -> set[int]:
    """The ids of what is written where nothing is made anew: `kept`, and what no loop that makes it reads alone."""
    found = set(kept)
    absorbed = in_products(graph, fusing)
    in_loops = rows(graph, fusing)
    loop = [*range(len(graph.ops))]
    for op in reversed(graph.ops):
        is_inside = op.id not in absorbed and (fuses(op, fusing) or op.id in in_loops)
        for tensor in op.outs:
            into = _readers(graph, fusing, op, uses.get(tensor.id, ())) if is_inside else None
            if into is None or len({loop[reader] for reader in into}) != 1:
                found.add(tensor.id)
            elif len(op.outs) == 1:
                loop[op.id] = loop[into[0]]

    return found


def _readers(graph: OpGraph, fusing: Fusing, op: OpNode, uses: Sequence[Use]) -> list[int] | None:
    """The readers of what `op` makes, by these uses, if all compute it in their loops; else None.

    None of them is absorbed by a product.
    """
    absorbed = in_products(graph, fusing)
    readers = [
        use.op
        for use in uses
        if use.op is not None
        and use.op not in absorbed
        and computes_read(graph.ops[use.op], fusing)
    ]

    _, in_tiles = turned(graph, fusing)
    is_reduced = any(not is_fusible(graph.ops[reader]) for reader in readers)
    if is_reduced and not in_tiles.isdisjoint([tensor.id for tensor in op.outs]):
        return None

    region = graph.original(op).region
    is_near = len(uses) == 1 or all(graph.ops[reader].region == region for reader in readers)
    if any(_enters(graph, fusing, op, graph.ops[reader]) for reader in readers):
        return None
    return readers if readers and is_near and len(readers) == len(uses) else None


def _enters(graph: OpGraph, fusing: Fusing, op: OpNode, reader: OpNode) -> bool:
    """Whether what `op` makes is written since `reader` stands in another region: see `Fusing.borders`."""
    if not fusing.borders or (fusing.sinks and traits_of(op.kind).rearranges == "repeats"):
        return False
    region = graph.original(op).region
    if reader.region == region or all(tensor.literal is not None for tensor in op.ins):
        return False
    entered = set(graph.tree.path(reader.region)).difference(graph.tree.path(region))
    return any(graph.tree.kind(one) in ("body", "test", "branch", "remat") for one in entered)


def _loops(
    graph: OpGraph, uses: Mapping[int, Sequence[Use]], found: set[int]
) -> tuple[tuple[int, ...], ...]:
    """By operator the last ones of its loops, where what is `found` is written."""
    loop: list[tuple[int, ...]] = [(n,) for n in range(len(graph.ops))]
    for op in reversed(graph.ops):
        if len(op.outs) == 1 and op.outs[0].id not in found:
            readers = [use.op for use in uses.get(op.outs[0].id, ()) if use.op is not None]
            loop[op.id] = tuple(sorted({last for reader in readers for last in loop[reader]}))

    return tuple(loop)


def _made_anew(
    graph: OpGraph,
    fusing: Fusing,
    uses: Mapping[int, Sequence[Use]],
    kept: set[int],
    found: set[int],
) -> set[int]:
    """The ids of what is written no more since each of several loops makes it from what it is made of.

        loops * (bytes that it is made of + work) <= bytes that it is made of + work + (1 + loops) * its bytes

    On the left what is read then, on the right what is read and written otherwise; the work is that of `Fusing.dear`. A
    result of a reduction is written.
    """
    loop = _loops(graph, uses, found)
    absorbed = in_products(graph, fusing)
    dear = dict(fusing.dear)
    sources: dict[int, Mapping[int, int]] = {}
    works: dict[int, Mapping[int, float]] = {}
    anew: set[int] = set()
    for op in graph.ops:
        made_of: dict[int, int] = {}
        work: dict[int, float] = {}
        for tensor in op.ins:
            made_of |= sources.get(tensor.id, {tensor.id: tensor.size_bytes})
            work |= works.get(tensor.id, {})
        if len(op.outs) != 1 or not fuses(op, fusing):
            continue

        (tensor,) = op.outs
        if op.kind in dear:
            work[op.id] = dear[op.kind] * prod(tensor.shape)
        if tensor.id in found:
            readers = _readers(graph, fusing, op, uses.get(tensor.id, ()))
            if tensor.id in kept or readers is None or op.id in absorbed or not is_fusible(op):
                continue
            count = len({last for reader in readers for last in loop[reader]})
            read = sum(made_of.values()) + sum(work.values())
            if count * read > read + (1 + count) * tensor.size_bytes:
                continue
            anew.add(tensor.id)
        sources[tensor.id] = made_of
        works[tensor.id] = work

    return anew


def _joins_product(graph: OpGraph, op: OpNode) -> bool:
    """Whether a product of matrices does `op` to its result: see `Fusing.into_products`."""
    if op.kind == "transpose":
        last = op.ins[0].ndim - 1
        return tuple(op.params["permutation"]) == (*range(last - 1), last, last - 1)
    if op.kind not in ("add", "add_any"):
        return False
    if any(_is_bias(graph.producers.get(tensor.id)) for tensor in op.ins):
        return True
    shape = op.outs[0].shape
    return all(tensor.shape == shape and not _is_spread(graph, tensor) for tensor in op.ins)


def _is_spread(graph: OpGraph, tensor: TensorInfo) -> bool:
    """Whether a tensor only repeats something."""
    producer = graph.producers.get(tensor.id)
    return producer is not None and traits_of(producer.kind).rearranges == "repeats"


def _is_bias(op: OpNode | None) -> bool:
    """Whether `op` repeats a vector for every row, along the last dim; a reshape may come between."""
    if op is None or op.kind != "broadcast_in_dim":
        return False
    (tensor,) = op.outs
    wide = [n for n, size in enumerate(op.ins[0].shape) if size > 1]
    dims: Sequence[int] = op.params["broadcast_dimensions"]
    return len(wide) == 1 and dims[wide[0]] == tensor.ndim - 1


@once_per_graph
def written_out(graph: OpGraph, fusing: Fusing = PLAIN) -> frozenset[int]:
    """The ids of operators that only repeat or count what they are given, but whose results are written all the same.

    They are views to whoever computes in a loop, which takes the elements it wants from the operand; products, scatters
    and whatever else is no such loop read an array, and so does the caller.
    """
    uses = uses_of(graph)
    kept = materialised(graph, fusing)

    return frozenset(
        op.id
        for op in graph.ops
        if traits_of(op.kind).rearranges == "repeats"
        and op.outs[0].id in kept
        and op.outs[0].size_bytes > sum(tensor.size_bytes for tensor in op.ins)
        and any(
            use.op is None
            or not computes_read(graph.ops[use.op], fusing)
            or _enters(graph, fusing, op, graph.ops[use.op])
            for use in uses.get(op.outs[0].id, ())
        )
    )


@once_per_graph
def recomputed(graph: OpGraph, fusing: Fusing = PLAIN) -> frozenset[int]:
    """The ids of tensors with several uses that each of them may compute anew, so that the operands live on.

    Results of cheap fusible operators that only fusible operators and reductions read. Whether XLA keeps such a tensor
    or its operands depends on the fusions it comes upon; who wants an upper bound of memory counts both. What is kept
    for a recomputation is kept itself. What only sees in another shape what is kept has as many bytes as that: one of
    the two is enough; so is one of what is dear to compute and what is chosen of it by a mask.
    """
    found: set[int] = set()
    every = uses_of(graph)
    kept = materialised(graph, fusing)
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
        if (
            len(readers) == len(uses)
            and not held
            and all(computes_read(r, fusing) for r in readers)
        ):
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
