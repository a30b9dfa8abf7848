"""Recompute: a graph in which some operators run once more, right before they are needed again.

What was computed in the forward pass and is read in the backward pass is kept in between, or computed once more there:

    kept        t = f(x) ... forward readers of t ........................ backward readers of t
    recomputed  t = f(x) ... forward readers of t ....... t' = f(x') .... backward readers of t'

A scan whose body makes t stacks it for a later scan, which slices it. There the twin stands in the later body and takes
the place of the slice; stack and slice go. So does an original that nobody reads any more: it runs later instead. Its
operands are found there: as slices of their own, as what is read from outside of both loops, or as twins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.core.dataflow import Dataflow, dataflow
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.regions import BOUNDARY, LOOPS

Tensors = tuple[TensorInfo, ...]
Key = tuple[object, ...]
"""Where an operator of a rewritten graph comes from: ("op", id), ("twin", id, before) or ("slice", tensor, region)."""


@dataclass(frozen=True, order=True)
class Recomputed:
    """Operator `op` runs once more right before operator `before`: who reads its results from there on reads anew."""

    op: int
    before: int


@dataclass(frozen=True)
class Twin:
    """A recomputation in a rewritten graph: operator `op` repeats operator `original`, or stands in its place (None).

    `kept` are the tensors that would be read in place of its results, if they were kept: its original's results, or
    slices of their stacks. `residuals` are the operators that make such stacks and slices and serve nothing else.
    """

    op: int
    original: int | None
    kept: tuple[TensorInfo | None, ...]
    residuals: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A graph with recomputations, where each of its operators comes from in `before`, and the recomputations."""

    graph: OpGraph
    keys: tuple[Key, ...]
    twins: tuple[Twin, ...]
    before: OpGraph

    @cached_property
    def flow(self) -> Dataflow:
        """The copies of the graph: the same on every mesh."""
        return dataflow(self.graph)

    @cached_property
    def places(self) -> tuple[Key, ...]:
        """The place of every operator in what repeats, as layers do; of one that runs once more, that of its original.

        What is computed once more stands where it is needed, not in every layer at the same place.
        """
        first = self.before.repeats
        return tuple(
            [
                (key[0], first[key[1]]) if isinstance(key[1], int) and key[0] != "slice" else key
                for key in self.keys
            ]
        )

    @cached_property
    def repeats(self) -> tuple[int, ...]:
        """As `OpGraph.repeats`, by these places."""
        first: dict[tuple[Key, int], int] = {}
        looks = zip(self.places, self.graph.alike, strict=True)
        return tuple([first.setdefault(look, n) for n, look in enumerate(looks)])


def with_recomputed(
    graph: OpGraph, recomputed: Sequence[Recomputed], *, residuals: bool = False
) -> Rewritten:
    """`graph` with the operators of `recomputed` repeated where that says.

    With `residuals` the stacks and slices that nobody reads any more stay: the graph in which either is chosen.

    Raises:
      ValueError: there is no such operator, it must run once, or an operand is not to be had where it runs again.
    """
    for one in recomputed:
        if not 0 <= one.op < one.before < len(graph.ops):
            raise ValueError(
                f"operator {one.op} cannot run again before {one.before}: there are {len(graph.ops)}"
            )
        if graph.ops[one.op].effect is not None or graph.ops[one.op].kind in BOUNDARY:
            raise ValueError(f"operator {one.op} ({graph.ops[one.op].kind}) cannot run again")
    return _Rewriting(graph, recomputed, residuals).result() if recomputed else _as_it_is(graph)


def counterpart(graph: OpGraph, tensor: TensorInfo, region: int | None) -> TensorInfo | None:
    """Where the value of `tensor` in the current round is read in `region`, without recomputing: itself if it is seen.

    For one that a scan made in its body, the slice of its stack in the later scan that `region` is the body of.
    """
    made_in = graph.made_in(tensor)
    if tensor.literal is not None or made_in is None or made_in in graph.tree.path(region):
        return tensor

    loop = graph.tree.parent(region)
    if loop is None or graph.tree.kind(loop) != "scan":
        return None

    producer = graph.producers[tensor.id]
    stacks = {
        op.outs[0].id for op in graph.ops if op.kind == "scan_stack" and op.ins[0].id == tensor.id
    }
    if producer.kind == "scan_slice" and _aligned(graph, producer.region, loop):
        stacks.add(producer.ins[0].id)

    slices = (
        op
        for op in graph.ops
        if op.kind == "scan_slice" and op.region == loop and op.ins[0].id in stacks
    )
    return next((op.outs[0] for op in slices), None)


def sliced_anew(graph: OpGraph, tensor: TensorInfo, region: int | None) -> TensorInfo | None:
    """What a further slice in the scan around `region` would have to slice to give `tensor` there; None if nothing."""
    loop = graph.tree.parent(region)
    producer = graph.producers.get(tensor.id)
    if (
        loop is None
        or producer is None
        or producer.kind != "scan_slice"
        or graph.tree.kind(loop) != "scan"
    ):
        return None

    whole = producer.ins[0]
    made_in = graph.made_in(whole)
    seen = made_in is None or made_in in graph.tree.path(graph.tree.parent(loop))
    return whole if seen and _aligned(graph, producer.region, loop) else None


def _aligned(graph: OpGraph, first: int | None, second: int | None) -> bool:
    """Whether two scans go through stacks of one length: round i of either belongs to element i."""
    if first is None or second is None:
        return False
    bodies = [
        next(r for r in graph.tree.children(loop) if r.kind == "body") for loop in (first, second)
    ]
    return bodies[0].trips == bodies[1].trips and all(
        graph.tree.kind(loop) in LOOPS for loop in (first, second)
    )


def _as_it_is(graph: OpGraph) -> Rewritten:
    return Rewritten(graph, tuple(("op", op.id) for op in graph.ops), (), graph)


@dataclass(eq=False)
class _Rewriting:
    """One rewriting: the operators so far, each with what it reads, and which tensor is read instead of another now."""

    graph: OpGraph
    recomputed: Sequence[Recomputed]
    residuals: bool
    ops: list[tuple[OpNode, Tensors]] = field(default_factory=list[tuple[OpNode, Tensors]])
    keys: list[Key] = field(default_factory=list[Key])
    instead: dict[int, TensorInfo] = field(default_factory=dict[int, TensorInfo])
    twins: list[tuple[Key, int, tuple[TensorInfo | None, ...]]] = field(
        default_factory=list[tuple[Key, int, tuple[TensorInfo | None, ...]]]
    )

    def __post_init__(self) -> None:
        graph = self.graph
        everything = (
            *graph.inputs,
            *(t for op in graph.ops for t in (*op.ins, *op.outs)),
            *graph.outputs,
        )
        self.count = max((tensor.id for tensor in everything), default=-1) + 1
        self.due: dict[int, list[Recomputed]] = {}
        for one in sorted(set(self.recomputed)):
            self.due.setdefault(one.before, []).append(one)

    def result(self) -> Rewritten:
        """The graph, renumbered."""
        slices = self._slices()
        for op in self.graph.ops:
            for one in self.due.get(op.id, ()):
                self._repeat(one)
            self._add(("op", op.id), op, self._read(op))
            for key, added in slices.get(op.id, ()):
                self._add(key, added, added.ins)

        dead = frozenset[int]() if self.residuals else self._dead()
        kept = [n for n, key in enumerate(self.keys) if key[0] != "op" or key[1] not in dead]
        number = {self.keys[n]: position for position, n in enumerate(kept)}
        ops = tuple(
            [self._numbered(*self.ops[n], position, number) for position, n in enumerate(kept)]
        )
        graph = replace(self.graph, ops=ops)
        residual = self._residual_ops
        twins = tuple(
            Twin(
                number[key],
                number.get(("op", op)),
                kept,
                tuple(number["op", n] for n in made if ("op", n) in number),
            )
            for key, op, kept in self.twins
            for made in [residual.get(op, ())]
        )
        return Rewritten(graph, tuple(self.keys[n] for n in kept), twins, self.graph)

    @cached_property
    def _residual_ops(self) -> dict[int, list[int]]:
        """The operators that stack and slice each recomputed operator's results for its twin."""
        found: dict[int, list[int]] = {}
        for _, op, kept in self.twins:
            for tensor in kept:
                made = None if tensor is None else self.graph.producers.get(tensor.id)
                if made is not None and made.kind == "scan_slice":
                    found.setdefault(op, []).extend(
                        (self.graph.producers[made.ins[0].id].id, made.id)
                    )
        return found

    def _dead(self) -> frozenset[int]:
        """The stacks, slices and recomputed operators that nobody reads any more."""
        originals = {op for _, op, _ in self.twins if self.graph.ops[op].effect is None}
        readers = Counter([tensor.id for _, ins in self.ops for tensor in ins])
        readers.update(tensor.id for tensor in self.graph.outputs)
        ins = {
            key[1]: mine
            for key, (_, mine) in zip(self.keys, self.ops, strict=True)
            if key[0] == "op"
        }
        dead: set[int] = set()
        for n in sorted(originals.union(*self._residual_ops.values()), reverse=True):
            if not any(readers[tensor.id] for tensor in self.graph.ops[n].outs):
                dead.add(n)
                readers.subtract(tensor.id for tensor in ins[n])

        return frozenset(dead)

    def _numbered(self, op: OpNode, ins: Tensors, position: int, number: dict[Key, int]) -> OpNode:
        original = None if op.recomputes is None else number.get(("op", op.recomputes), position)
        if op.id == position and op.ins is ins and op.recomputes == original:
            return op
        return replace(op, id=position, ins=ins, recomputes=original)

    def _read(self, op: OpNode) -> Tensors:
        """What `op` reads from here on; its own operands, as they are, if all are still there."""
        instead = self.instead
        if instead.keys().isdisjoint([tensor.id for tensor in op.ins]):
            return op.ins
        return tuple([instead.get(tensor.id, tensor) for tensor in op.ins])

    def _add(self, key: Key, op: OpNode, ins: Tensors) -> None:
        self.keys.append(key)
        self.ops.append((op, ins))

    def _repeat(self, one: Recomputed) -> None:
        """Adds the twin; from here on its results are read in place of what would have been kept."""
        op = self.graph.ops[one.op]
        region = self.graph.ops[one.before].region
        ins = tuple(self._found(tensor, region, one) for tensor in op.ins)
        kept = tuple(counterpart(self.graph, tensor, region) for tensor in op.outs)
        outs = tuple(self._again(tensor, region) for tensor in op.outs)
        key: Key = ("twin", one.op, one.before)
        self._add(
            key, replace(op, outs=outs, phase="backward", region=region, recomputes=op.id), ins
        )
        self.twins.append((key, op.id, kept))
        self.instead |= {tensor.id: new for tensor, new in zip(op.outs, outs, strict=True)}

        self.instead |= {
            old.id: new for old, new in zip(kept, outs, strict=True) if old is not None
        }

    def _again(self, tensor: TensorInfo, region: int | None) -> TensorInfo:
        """A new tensor for what is made again; it is a number times what its original is one of, if that is seen."""
        self.count += 1
        root = tensor.multiple_of
        if root is not None:
            made = self.graph.producers.get(root)
            tree = self.graph.tree
            around = None if made is None else tree.made_in(made.kind, made.region)
            seen = around is None or around in tree.path(region)
            root = self.instead[root].root if root in self.instead else root if seen else None
        return replace(tensor, id=self.count - 1, multiple_of=root)

    def _found(self, tensor: TensorInfo, region: int | None, one: Recomputed) -> TensorInfo:
        """What is read for `tensor` in `region`."""
        if tensor.id in self.instead:
            return self.instead[tensor.id]
        found = counterpart(self.graph, tensor, region)
        if found is None and (region, tensor.id) in self._sliced:
            found = self._sliced[region, tensor.id]
        if found is None:
            op = self.graph.ops[one.op]
            raise ValueError(
                f"operator {op.id} ({op.kind}) cannot run again before {one.before}: {tensor} is gone"
            )
        return self.instead.get(found.id, found)

    def _slices(self) -> dict[int, list[tuple[Key, OpNode]]]:
        """The further slices that twins read, after the operator behind which each stands: the last that enters."""
        found: dict[int, list[tuple[Key, OpNode]]] = {}
        self._sliced: dict[tuple[int | None, int], TensorInfo] = {}
        ops = self.graph.ops
        again = {
            (ops[one.before].region, t.id) for one in self.recomputed for t in ops[one.op].outs
        }
        for one in sorted(set(self.recomputed)):
            region = ops[one.before].region
            for tensor in ops[one.op].ins:
                known = (region, tensor.id) in again or (region, tensor.id) in self._sliced
                if known or counterpart(self.graph, tensor, region) is not None:
                    continue
                whole = sliced_anew(self.graph, tensor, region)
                if whole is not None:
                    last, key, op = self._slice(tensor, whole, region)
                    self._sliced[region, tensor.id] = op.outs[0]
                    found.setdefault(last, []).append((key, op))

        return found

    def _slice(
        self, tensor: TensorInfo, whole: TensorInfo, region: int | None
    ) -> tuple[int, Key, OpNode]:
        loop = self.graph.tree.parent(region)
        entering = [
            op
            for op in self.graph.ops
            if op.region == loop and op.kind in ("carry_in", "scan_slice")
        ]
        position = 1 + max(
            (op.params["position"] for op in entering if op.kind == "scan_slice"), default=-1
        )
        position += sum(region == other for other, _ in self._sliced)
        self.count += 1
        out = replace(tensor, id=self.count - 1, multiple_of=None)
        last = entering[-1]
        op = replace(
            last, kind="scan_slice", ins=(whole,), outs=(out,), params={"position": position}
        )

        return last.id, ("slice", tensor.id, region), op
