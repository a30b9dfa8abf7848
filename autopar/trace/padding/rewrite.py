"""The rewrite: every operator on padded operands where it can be, with its loops and branches around it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from autopar.core.graph import TensorInfo
from autopar.core.regions import BOUNDARY, CONTROL, ENTERING, LEAVING, RegionTree
from autopar.trace.draft import Draft, DraftOp
from autopar.trace.padding.contraction import HANDLERS as CONTRACTIONS
from autopar.trace.padding.elementwise import HANDLERS as ELEMENTWISE
from autopar.trace.padding.indexing import HANDLERS as INDEXING
from autopar.trace.padding.moving import HANDLERS as MOVING
from autopar.trace.padding.padder import Form, Padder, Shape
from autopar.trace.padding.shape import HANDLERS as SHAPES
from autopar.trace.padding.wishes import wishes

Handler = Callable[[Padder, DraftOp], bool]
_HANDLERS: dict[str, Handler] = {
    **ELEMENTWISE,
    **CONTRACTIONS,
    **SHAPES,
    **MOVING,
    **INDEXING,
}
"""For each kind what adds it on padded operands, if it can, and says whether it did."""


def padded(
    draft: Draft,
    ops: Sequence[DraftOp],
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    sizes: Mapping[int, int],
    state: Collection[int],
) -> tuple[list[DraftOp], list[TensorInfo]]:
    """The operators with dims of these sizes padded inside, and the results: inputs and results keep their shapes.

    `state` are the ids of inputs that are carried from call to call.
    """
    resting = {
        t.id
        for t in inputs
        if t.id in state and any(size not in sizes for size in t.shape if size > 1)
    }
    padder = Padder(draft, sizes, resting, RegionTree(draft.regions), wishes(ops))
    given = [*inputs, *(tensor for _, tensor in draft.constants.values())]
    padder.forms = {tensor.id: [Form(tensor)] for tensor in given}
    _Rewrite(padder, ops).run()
    makers = {tensor.id: op for op in ops for tensor in op.outs}
    nowhere = DraftOp("", (), (), {}, "", "", None, None)
    places = [replace(makers.get(tensor.id, nowhere), region=None) for tensor in outputs]
    results = [
        padder.need(t, t.shape, place).tensor for t, place in zip(outputs, places, strict=True)
    ]

    return padder.ops, results


class _Rewrite:
    """Takes the operators in order; `reads` are what boundary operators read, by region."""

    def __init__(self, padder: Padder, ops: Sequence[DraftOp]) -> None:
        self.padder = padder
        self.ops = ops
        self.tree = padder.tree
        self.entering: dict[int | None, list[DraftOp]] = defaultdict(list)
        self.leaving: dict[int | None, list[DraftOp]] = defaultdict(list)
        for op in ops:
            if op.kind in ENTERING:
                self.entering[op.region].append(op)
            elif op.kind in LEAVING:
                self.leaving[op.region].append(op)

        self.chosen: dict[int, Shape] = {
            t.id: padder.wanted(t)
            for op in ops
            if op.kind == "cond_result"
            for t in op.ins
            if t.literal is None
        }
        self.left: set[int] = set()
        self.due: list[tuple[TensorInfo, DraftOp]] = []

    def run(self) -> None:
        """Adds all operators."""
        around: tuple[int, ...] = ()
        for op in self.ops:
            path = self.tree.path(op.region)
            self._settle(path)
            for region in reversed([r for r in path if r not in around]):
                if self.tree.kind(region) in CONTROL:
                    self._open(region, op)
            around = path
            if op.kind in LEAVING and op.region is not None and op.region not in self.left:
                self._leave(op.region, op)
            self._take(op)
            self.due += [(t, op) for t in op.outs if t.id in self.chosen]

        self._settle(())

    def _settle(self, path: tuple[int, ...]) -> None:
        """Pads what a branch gives back, right behind what made it or behind the loop that did."""
        rest: list[tuple[TensorInfo, DraftOp]] = []
        for tensor, op in self.due:
            if op.kind in BOUNDARY and op.region in path:
                rest.append((tensor, op))
                continue
            home = self.padder.forms[tensor.id][0].region
            if home is not None:
                self.padder.need(tensor, self.chosen[tensor.id], op, home)
        self.due = rest

    def _open(self, region: int, op: DraftOp) -> None:
        """Makes what a loop or choice reads from outside, before its first operator."""
        parent = self.tree.parent(region)
        for one in self.entering[region]:
            for tensor, shape in zip(one.ins, self._shapes(one)[0], strict=True):
                self._make(tensor, shape, op, parent)
        for one in self.leaving[region]:
            if one.kind == "cond_result":
                for tensor in one.ins:
                    if tensor.id in self.padder.forms:
                        self._make(tensor, self.padder.wanted(tensor), op, parent)

    def _leave(self, region: int, op: DraftOp) -> None:
        """Makes what a loop gives back, behind the last operator of its body."""
        self.left.add(region)
        for one in self.leaving[region]:
            if one.kind != "cond_result":
                body = self.tree.reads_in(one.kind, region, 0)
                self._make(one.ins[0], self._shapes(one)[0][0], op, body)

    def _make(self, tensor: TensorInfo, shape: Shape, op: DraftOp, region: int | None) -> None:
        if tensor.literal is None:
            self.padder.need(
                tensor, shape, DraftOp("", (), (), {}, op.source, op.scope, region, None)
            )

    def _take(self, op: DraftOp) -> None:
        if op.kind in BOUNDARY:
            self._cross(op)
        elif (
            op.effect is not None
            or _is_manual(op)
            or not _HANDLERS.get(op.kind, _never)(self.padder, op)
        ):
            self.padder.whole(op)

    def _cross(self, op: DraftOp) -> None:
        """A boundary operator on what was made for it."""
        shapes, results = self._shapes(op)
        ins: list[Form] = []
        for position, (tensor, shape) in enumerate(zip(op.ins, shapes, strict=True)):
            where = self.tree.reads_in(op.kind, op.region, position)
            ins.append(
                self.padder.need(
                    tensor, shape, DraftOp("", (), (), {}, op.source, op.scope, where, None)
                )
            )
        self.padder.put(op, ins, results)

    def _shapes(self, op: DraftOp) -> tuple[list[Shape], list[Shape]]:
        """The shapes of what a boundary operator reads and makes."""
        wanted = self.padder.wanted
        if op.kind in ("branch_index", "while_test"):
            return [t.shape for t in op.ins], [t.shape for t in op.outs]
        if op.kind == "scan_slice":
            one = wanted(op.outs[0])
            return [(op.ins[0].shape[0], *one)], [one]
        if op.kind == "scan_stack":
            one = wanted(op.ins[0])
            return [one], [(op.outs[0].shape[0], *one)]
        return [wanted(t) for t in op.ins], [wanted(t) for t in op.outs]


def _is_manual(op: DraftOp) -> bool:
    """Whether `op` stands in a shard_map of the user's, or at its border."""
    return any(tensor.manual for tensor in (*op.ins, *op.outs))


def _never(_: Padder, __: DraftOp) -> bool:
    return False
