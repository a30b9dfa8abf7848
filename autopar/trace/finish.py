"""Finish: from a draft to the OpGraph. Dead code and repeats go, phases are set, all is numbered by position."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autopar.core.graph import CONSTANT, OpNode, Phase, TensorInfo
from autopar.core.regions import CONTROL, Region, RegionTree
from autopar.trace.accumulated import accumulated
from autopar.trace.draft import Draft, DraftOp
from autopar.trace.merge import merged
from autopar.trace.moving import composed
from autopar.trace.near import near
from autopar.trace.padding import padded

_TRANSPOSE = "transpose"
_JVP = "jvp"
_DIFFERENTIATION = re.compile(r"\b(transpose|jvp)(?=\()")


@dataclass(frozen=True)
class Padding:
    """What sizes of dims become inside, and the ids of inputs that are state, which lies as it comes."""

    sizes: Mapping[int, int]
    state: frozenset[int]


NO_PADDING = Padding({}, frozenset())


@dataclass(frozen=True, eq=False)
class GraphParts:
    """The parts of an OpGraph, and the values of the hoisted constants, which are its last inputs."""

    ops: tuple[OpNode, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    regions: tuple[Region, ...]
    constants: tuple[Any, ...]


def finish(draft: Draft, inputs: list[TensorInfo], outputs: list[TensorInfo]) -> GraphParts:
    """The numbered graph of what `outputs` depend on; hoisted constants that are used follow `inputs`."""
    return numbered(draft, inputs, *composed(draft, outputs))


def numbered(
    draft: Draft,
    inputs: list[TensorInfo],
    ops: list[DraftOp],
    outputs: list[TensorInfo],
    padding: Padding = NO_PADDING,
) -> GraphParts:
    """As `finish`, of operators of the draft in which chains of moving ones are composed."""
    if padding.sizes:
        ops, _ = _live_operators(ops, draft.regions, outputs)
        ops, outputs = padded(draft, ops, inputs, outputs, padding.sizes, padding.state)

    ops, live = _live_operators(accumulated(ops, outputs), draft.regions, outputs)
    ops, outputs = merged(ops, outputs)
    ops = near(ops)
    constants = [(value, tensor) for value, tensor in draft.constants.values() if tensor.id in live]
    named = [replace(tensor, name=f"{CONSTANT}{i}]") for i, (_, tensor) in enumerate(constants)]
    renamed: dict[int, TensorInfo] = {}
    roots = _roots(ops)

    def number(tensor: TensorInfo) -> TensorInfo:
        if tensor.id not in renamed:
            root = renamed[roots[tensor.id]].root if tensor.id in roots else None
            same = (tensor.shape, tensor.dtype, tensor.itemsize, tensor.name, tensor.literal)
            renamed[tensor.id] = TensorInfo(
                len(renamed), *same, root, tensor.manual, tensor.on_host, tensor.fixed
            )
        return renamed[tensor.id]

    all_inputs = tuple(number(tensor) for tensor in [*inputs, *named])
    regions, region_of = _used_regions(draft.regions, ops)
    phases = _phases(ops)
    nodes = tuple(
        OpNode(
            id=position,
            kind=op.kind,
            ins=tuple(map(number, op.ins)),
            outs=tuple(map(number, op.outs)),
            params=op.params,
            source=op.source,
            scope=op.scope,
            phase=phase,
            region=None if op.region is None else region_of[op.region],
            payload=op.payload,
            effect=op.effect,
            body=op.body,
            added=op.added,
        )
        for position, (op, phase) in enumerate(zip(ops, phases, strict=True))
    )
    results = tuple(number(tensor) for tensor in outputs)
    return GraphParts(nodes, all_inputs, results, regions, tuple(value for value, _ in constants))


def _roots(ops: list[DraftOp]) -> dict[int, int]:
    """For each tensor that is a number times another one, or that in another type, the other one."""
    numbers = {op.outs[0].id for op in ops if op.kind == "broadcast_in_dim" and not op.ins[0].shape}
    found: dict[int, int] = {}
    for op in ops:
        factors = [t for t in op.ins if t.literal is None and t.id not in numbers]
        scales = op.kind in ("neg", "convert_element_type", "mul") or (
            op.kind == "div" and factors == [op.ins[0]]
        )
        if scales and len(factors) == 1:
            found[op.outs[0].id] = factors[0].id
    return found


def _live_operators(
    ops: list[DraftOp], regions: list[Region], outputs: list[TensorInfo]
) -> tuple[list[DraftOp], set[int]]:
    """The operators that some result or effect depends on, and the ids of all tensors that are used.

    A loop that is needed needs its test; a carry that is read inside needs to be made inside: until nothing is added.
    """
    tree = RegionTree(regions)
    carries = [op for op in ops if op.kind in ("carry_in", "carry_out")]
    pairs: dict[tuple[int | None, Any], list[DraftOp]] = {}
    for op in carries:
        pairs.setdefault((op.region, op.params["position"]), []).append(op)

    used = {tensor.id for tensor in outputs}
    kept: set[DraftOp] = set()
    needed: set[int] = set()

    def is_needed(op: DraftOp) -> bool:
        if op.effect or not used.isdisjoint([tensor.id for tensor in op.outs]):
            return True
        if op.kind in ("carry_in", "carry_out"):
            return not kept.isdisjoint(pairs[op.region, op.params["position"]])
        return not op.outs and not needed.isdisjoint(tree.path(op.region))

    while True:
        before = len(kept)
        for op in reversed(ops):
            if op not in kept and is_needed(op):
                kept.add(op)
                used.update([tensor.id for tensor in op.ins])
                needed.update([r for r in tree.path(op.region) if tree[r].kind in CONTROL])
        if len(kept) == before or not needed:
            return [op for op in ops if op in kept], used


def _used_regions(
    regions: list[Region], ops: list[DraftOp]
) -> tuple[tuple[Region, ...], dict[int, int]]:
    """The regions that still hold an operator, or a region that does, and all inner regions of control regions.

    They are numbered anew.
    """
    tree = RegionTree(regions)
    used = {region for op in ops for region in tree.path(op.region)}
    used |= {
        region.id
        for region in regions
        if region.kind in ("body", "test", "branch") and region.parent in used
    }
    number = {old: new for new, old in enumerate(sorted(used))}
    kept = tuple(
        replace(
            regions[old],
            id=new,
            parent=None if (parent := regions[old].parent) is None else number[parent],
        )
        for old, new in number.items()
    )

    return kept, number


def _phases(ops: list[DraftOp]) -> list[Phase]:
    """What is transposed is "backward", what is differentiated for that, or depends on nothing transposed, "forward".

    The rest, computed from gradients outside of all differentiation, is the "update".
    """
    known = {op.scope: _differentiations(op.scope) for op in ops}
    transposed = {scope[1:] for scope in known.values() if scope[:1] == (_TRANSPOSE,)}
    phases: list[Phase] = []
    after: set[int] = set()
    for op in ops:
        outermost = _outermost(known[op.scope], transposed)
        depends = outermost == _TRANSPOSE or not after.isdisjoint([tensor.id for tensor in op.ins])
        if depends:
            after.update(tensor.id for tensor in op.outs)
        phases.append(
            "backward"
            if outermost == _TRANSPOSE
            else "update"
            if depends and not outermost
            else "forward"
        )

    return phases


def _differentiations(scope: str) -> tuple[str, ...]:
    """The differentiations that the name stack of an operator says it comes from, the last one first."""
    return tuple(_DIFFERENTIATION.findall(scope))


def _outermost(scope: Sequence[str], transposed: Collection[Sequence[str]]) -> str:
    """The differentiation that made an operator what it is: its transposing, its jvp to be transposed, or none ("").

    A jvp that nothing transposes (of a gradient, for a product with the Hessian) is looked through.
    """
    for position, name in enumerate(scope):
        if name == _TRANSPOSE or (name == _JVP and tuple(scope[position:]) in transposed):
            return name
    return ""
