"""Finish: from a draft to the OpGraph. Dead code goes, phases are set, everything is numbered by position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autopar.core.graph import OpNode, Phase, Region, TensorInfo
from autopar.trace.draft import Draft, DraftOp

CONSTANT = "constant["
"""What the names of hoisted constants begin with."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of an OpGraph, and the values of the hoisted constants, which are its last inputs."""

    ops: tuple[OpNode, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    regions: tuple[Region, ...]
    constants: tuple[Any, ...]


def finish(draft: Draft, inputs: list[TensorInfo], outputs: list[TensorInfo]) -> Parts:
    """The numbered graph of what `outputs` depend on; hoisted constants that are used follow `inputs`."""
    ops, live = _live_operators(draft.ops, outputs)
    constants = [(value, tensor) for value, tensor in draft.constants.values() if tensor.id in live]
    named = [replace(tensor, name=f"{CONSTANT}{i}]") for i, (_, tensor) in enumerate(constants)]
    renamed: dict[int, TensorInfo] = {}
    all_inputs = tuple(_number(tensor, renamed) for tensor in [*inputs, *named])
    regions, region_of = _used_regions(draft.regions, ops)
    phases = _phases(ops)
    nodes = tuple(
        OpNode(
            id=position,
            kind=op.kind,
            ins=tuple(_number(tensor, renamed) for tensor in op.ins),
            outs=tuple(_number(tensor, renamed) for tensor in op.outs),
            params=op.params,
            source=op.source,
            scope=op.scope,
            phase=phase,
            region=None if op.region is None else region_of[op.region],
            payload=op.payload,
            body=op.body,
        )
        for position, (op, phase) in enumerate(zip(ops, phases, strict=True))
    )
    results = tuple(_number(tensor, renamed) for tensor in outputs)
    return Parts(nodes, all_inputs, results, regions, tuple(value for value, _ in constants))


def _number(tensor: TensorInfo, renamed: dict[int, TensorInfo]) -> TensorInfo:
    if tensor.id not in renamed:
        renamed[tensor.id] = replace(tensor, id=len(renamed))
    return renamed[tensor.id]


def _live_operators(ops: list[DraftOp], outputs: list[TensorInfo]) -> tuple[list[DraftOp], set[int]]:
    """The operators that some result depends on, and the ids of all tensors that are used."""
    used = {tensor.id for tensor in outputs}
    kept: list[DraftOp] = []
    for op in reversed(ops):
        if any(tensor.id in used for tensor in op.outs):
            kept.append(op)
            used.update(tensor.id for tensor in op.ins)
    return kept[::-1], used


def _used_regions(regions: list[Region], ops: list[DraftOp]) -> tuple[tuple[Region, ...], dict[int, int]]:
    """The regions that still hold an operator, or a region that does, numbered anew."""
    used: set[int] = set()
    for op in ops:
        region = op.region
        while region is not None and region not in used:
            used.add(region)
            region = regions[region].parent
    number = {old: new for new, old in enumerate(sorted(used))}
    kept = tuple(
        replace(regions[old], id=new, parent=None if (parent := regions[old].parent) is None else number[parent])
        for old, new in number.items()
    )
    return kept, number


def _phases(ops: list[DraftOp]) -> list[Phase]:
    """Transposed operators are "backward", those that depend on one are "update", the others "forward"."""
    phases: list[Phase] = []
    after: set[int] = set()
    for op in ops:
        transposed = "transpose(" in op.scope
        depends = transposed or any(tensor.id in after for tensor in op.ins)
        if depends:
            after.update(tensor.id for tensor in op.outs)
        phases.append("backward" if transposed else "update" if depends else "forward")
    return phases
