"""Fused: operators that run as one kernel, which computes while it moves: the slower of both is what it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod

from autopar.backends.known import backend_of
from autopar.core.graph import OpGraph, OpNode
from autopar.core.manual import BORDERS, manual_axes
from autopar.core.memo import once_per_graph
from autopar.ops.fusion import PLAIN, Fusing, first_made, in_products, loops, materialised
from autopar.ops.rate_kind import rate_kind
from autopar.ops.touched import touched
from autopar.ops.traits import reads_fused, traits_of, work_flops
from cost_models.compute import Device, moving_time_s, work_curve

Bounds = Mapping[int, float]
"""By operator how much of it runs in kernels that computing bounds: 1 or 0, parts of 1 where it runs in several."""


@once_per_graph
def moved(graph: OpGraph, fusing: Fusing = PLAIN) -> tuple[tuple[float, ...], ...]:
    """By operator the share of each operand, then of each result, that it moves to or from memory.

    Nothing of what stays within a kernel (`work.materialised`), of the rest what is `touched`. What several operators
    of a kernel read is read once: each of them counts a part of it. What runs in several kernels reads in each. What is
    recomputed counts as if it were not.
    """
    kept = materialised(graph, fusing)
    absorbed = in_products(graph, fusing)
    first = first_made(graph)
    alone = [
        (0.0,) * (len(op.ins) + len(op.outs)) if op.id in absorbed else _in_memory(graph, op, kept)
        for op in graph.ops
    ]
    found = [[*shares] for shares in alone]
    kernels = _kernels(graph, fusing)
    for op in {op.id: op for kernel in kernels for op in kernel}.values():
        found[op.id][: len(op.ins)] = [0.0] * len(op.ins)

    for kernel in kernels:
        read: dict[int, float] = defaultdict(float)
        for op in kernel:
            for tensor, share in zip(op.ins, alone[op.id], strict=False):
                read[first.get(tensor.id, tensor.id)] += share
        for op in kernel:
            for n, tensor in enumerate(op.ins):
                total = read[first.get(tensor.id, tensor.id)]
                found[op.id][n] += alone[op.id][n] / max(1.0, total)

    return tuple([tuple(found[graph.original(op).id]) for op in graph.ops])


def bounds(
    graph: OpGraph, device: Device, devices: int, sizes: Mapping[str, int] | None = None
) -> Bounds:
    """Whether computing bounds the kernel that an operator runs in with others, not moving; all else runs alone.

        kernel: max(sum of computing, sum of moving)

    So an operator costs its part of the one or of the other. Which of both bounds a kernel is decided once, with all
    that it does split over all `devices`, so that its operators have prices of their own. Along manual axes, of these
    `sizes`, it is split already. Meshes of as many devices share what is found, where no axis is manual.
    """
    axes = tuple((sizes or {}).items()) if has_manual_axes(graph) else ()
    return _bounds(graph, device, devices, axes)


def kernel_flops(graph: OpGraph, op: OpNode, fusing: Fusing, bound: Bounds) -> float:
    """The operations of an operator in all kernels that computing bounds; none where a product does them itself."""
    if op.id in in_products(graph, fusing):
        return 0.0
    return len(loops(graph, fusing)[graph.original(op).id]) * bound.get(op.id, 1.0) * work_flops(op)


def kernel_shares(graph: OpGraph, op: OpNode, fusing: Fusing, bound: Bounds) -> tuple[float, ...]:
    """What of its operands and results an operator moves (`moved`), in all kernels that moving bounds."""
    moving = 1.0 - bound.get(op.id, 0.0)
    return tuple([share * moving for share in moved(graph, fusing)[op.id]])


@once_per_graph
def has_manual_axes(graph: OpGraph) -> bool:
    """Whether any operator stands in a part that the user splits by hand."""
    return any(tensor.manual for op in graph.ops for tensor in (*op.ins, *op.outs))


@once_per_graph
def _bounds(
    graph: OpGraph, device: Device, devices: int, axes: tuple[tuple[str, int], ...]
) -> Bounds:
    sizes = dict(axes)
    fusing = backend_of(device.compiler).fusing
    shares = moved(graph, fusing)
    times = [len(mine) for mine in loops(graph, fusing)]
    known = dict[tuple[object, ...], bool]()
    computing: dict[int, int] = {}

    for look, kernel in _shared(graph, fusing):
        if look not in known:
            parts = prod([sizes.get(axis, 1) for axis in manual_axes(kernel[0])])
            known[look] = _is_computing(kernel, shares, times, device, devices // parts)
        for op in kernel:
            computing[op.id] = computing.get(op.id, 0) + known[look]

    found = {
        op: count / times[op] for op, count in computing.items()
    }  # 1.0 where it is all of them
    for op in graph.ops:
        if op.recomputes in found:
            found[op.id] = found[op.recomputes]
    return found


@once_per_graph
def _shared(
    graph: OpGraph, fusing: Fusing
) -> tuple[tuple[tuple[object, ...], tuple[OpNode, ...]], ...]:
    """The kernels of several operators, each with what it looks like: equal where their times are."""
    shares = moved(graph, fusing)
    several = [kernel for kernel in _kernels(graph, fusing) if len(kernel) > 1]
    return tuple(
        (tuple((graph.alike[op.id], shares[op.id]) for op in kernel), kernel) for kernel in several
    )


@once_per_graph
def _kernels(graph: OpGraph, fusing: Fusing) -> tuple[tuple[OpNode, ...], ...]:
    """The operators of each fused loop, without views, as if nothing were recomputed."""
    found: dict[int, list[OpNode]] = {}
    absorbed = in_products(graph, fusing)
    for op, lasts in zip(graph.ops, loops(graph, fusing), strict=True):
        computes = reads_fused(op) and not traits_of(op.kind).is_view and op.id not in absorbed
        if computes and op.recomputes in (None, op.id) and (op.ins or op.outs):
            for last in lasts:
                found.setdefault(last, []).append(op)
    return tuple(map(tuple, found.values()))


def _in_memory(graph: OpGraph, op: OpNode, kept: frozenset[int]) -> tuple[float, ...]:
    if (
        op.kind in BORDERS and op.ins[0].id in kept and op.outs[0].id in kept
    ):  # one array under two names
        return (0.0, 0.0)
    shares = zip((*op.ins, *op.outs), touched(graph, op), strict=True)
    return tuple([share if tensor.id in kept else 0.0 for tensor, share in shares])


def _is_computing(
    kernel: Sequence[OpNode],
    shares: Sequence[Sequence[float]],
    times: Sequence[int],
    device: Device,
    devices: int,
) -> bool:
    """Whether computing bounds a kernel; what its operators move, `times` kernels move a part each."""
    computing = size = 0.0
    for op in kernel:
        tensors = (*op.ins, *op.outs)
        computing += work_curve(device, rate_kind(op), tensors[0].dtype).time_s(
            work_flops(op) / devices
        )
        size += (
            sum(share * t.size_bytes for t, share in zip(tensors, shares[op.id], strict=True))
            / times[op.id]
        )
    return computing > moving_time_s(size / devices, device)
