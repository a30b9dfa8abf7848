"""Fused: operators that run as one kernel, which computes while it moves: the slower of both is what it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from autopar.backends.known import backend_of
from autopar.core.graph import OpGraph, OpNode
from autopar.core.manual import manual_axes
from autopar.core.memo import once_per_graph
from autopar.cost.operators.moved import kernels
from autopar.cost.operators.reread import all_moved
from autopar.ops.fusion import Fusing, in_products, loops
from autopar.ops.rate_kind import rate_kind
from autopar.ops.traits import work_flops
from cost_models.compute import Device, moving_time_s, work_curve

Bounds = Mapping[int, float]
"""By operator how much of it runs in kernels that computing bounds: 1 or 0, parts of 1 where it runs in several."""


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


def kernel_flops(graph: OpGraph, op: OpNode, fusing: Fusing, bound: Bounds, times: float) -> float:
    """The operations of an operator in those of its kernels, `times`, that computing bounds; none where a product does
    them itself.
    """
    if op.id in in_products(graph, fusing):
        return 0.0
    return times * bound.get(op.id, 1.0) * work_flops(op)


def kernel_shares(
    graph: OpGraph, op: OpNode, fusing: Fusing, bound: Bounds, times: float, devices: int
) -> tuple[float, ...]:
    """What of its operands and results an operator moves in those of its kernels, `times`, that moving bounds.

    Of what it and its twin move in all of them (`all_moved`).
    """
    every = len(loops(graph, fusing)[graph.original(op).id])
    part = times / every if every else 1.0
    moving = part * (1.0 - bound.get(op.id, 0.0))
    return tuple([share * moving for share in all_moved(graph, fusing, devices)[op.id]])


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
    shares = all_moved(graph, fusing, devices)
    times = [len(mine) for mine in loops(graph, fusing)]
    known = dict[tuple[object, ...], bool]()
    computing: dict[int, int] = {}

    for look, kernel in _shared(graph, fusing, devices):
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
    graph: OpGraph, fusing: Fusing, devices: int
) -> tuple[tuple[tuple[object, ...], tuple[OpNode, ...]], ...]:
    """The kernels of several operators, each with what it looks like: equal where their times are."""
    shares = all_moved(graph, fusing, devices)
    several = [kernel for kernel in kernels(graph, fusing) if len(kernel) > 1]
    return tuple(
        (tuple((graph.alike[op.id], shares[op.id]) for op in kernel), kernel) for kernel in several
    )


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
