"""Fused: operators that run as one kernel, which computes while it moves: the slower of both is what it takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Literal

from autopar.backends.known import backend_of
from autopar.core.graph import OpGraph, OpNode
from autopar.core.manual import BORDERS, manual_axes
from autopar.core.memo import once_per_graph
from autopar.ops.fusion import PLAIN, Fusing, first_made, in_products, loops, materialised
from autopar.ops.rate_kind import rate_kind
from autopar.ops.touched import touched
from autopar.ops.traits import reads_fused, traits_of, work_flops
from cost_models.compute import Device, moving_time_s, work_curve

Bound = Literal["computing", "moving"]


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
    alone = [_widened(op) if op.id in absorbed else _in_memory(graph, op, kept) for op in graph.ops]
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
) -> Mapping[int, Bound]:
    """What bounds the kernel that an operator runs in with others, by the operator's id; all else runs alone.

        kernel: max(sum of computing, sum of moving)

    So an operator costs its part of the one or of the other. Which of both bounds a kernel is decided once, with all
    that it does split over all `devices`, so that its operators have prices of their own. Along manual axes, of these
    `sizes`, it is split already. Meshes of as many devices share what is found, where no axis is manual. An operator of
    several kernels that are bound by both computes.
    """
    axes = tuple((sizes or {}).items()) if has_manual_axes(graph) else ()
    return _bounds(graph, device, devices, axes)


def kernel_flops(graph: OpGraph, op: OpNode, fusing: Fusing, bound: Bound | None) -> float:
    """The operations of an operator in all kernels that compute it, `bound` as they are.

    None where these are bound by moving, and where a product of matrices does them to its result.
    """
    if bound == "moving" or op.id in in_products(graph, fusing):
        return 0.0
    return len(loops(graph, fusing)[graph.original(op).id]) * work_flops(op)


@once_per_graph
def has_manual_axes(graph: OpGraph) -> bool:
    """Whether any operator stands in a part that the user splits by hand."""
    return any(tensor.manual for op in graph.ops for tensor in (*op.ins, *op.outs))


@once_per_graph
def _bounds(
    graph: OpGraph, device: Device, devices: int, axes: tuple[tuple[str, int], ...]
) -> Mapping[int, Bound]:
    sizes = dict(axes)
    fusing = backend_of(device.compiler).fusing
    shares = moved(graph, fusing)
    known = dict[tuple[object, ...], Bound]()
    found: dict[int, Bound] = {}

    for look, kernel in _shared(graph, fusing):
        if look not in known:
            parts = prod([sizes.get(axis, 1) for axis in manual_axes(kernel[0])])
            known[look] = _bound(kernel, shares, device, devices // parts)
        for op in kernel:
            found[op.id] = known[look] if found.get(op.id) != "computing" else "computing"
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


def _widened(op: OpNode) -> tuple[float, ...]:
    """What is moved for what a product does to its result: the bytes by which that grows."""
    more = op.outs[0].size_bytes - op.ins[0].size_bytes if len(op.ins) == 1 else 0
    return (*[0.0] * len(op.ins), max(0, more) / max(1, op.outs[0].size_bytes))


def _in_memory(graph: OpGraph, op: OpNode, kept: frozenset[int]) -> tuple[float, ...]:
    if (
        op.kind in BORDERS and op.ins[0].id in kept and op.outs[0].id in kept
    ):  # one array under two names
        return (0.0, 0.0)
    shares = zip((*op.ins, *op.outs), touched(graph, op), strict=True)
    return tuple([share if tensor.id in kept else 0.0 for tensor, share in shares])


def _bound(
    kernel: Sequence[OpNode], shares: Sequence[Sequence[float]], device: Device, devices: int
) -> Bound:
    computing = size = 0.0
    for op in kernel:
        tensors = (*op.ins, *op.outs)
        computing += work_curve(device, rate_kind(op), tensors[0].dtype).time_s(
            work_flops(op) / devices
        )
        size += sum(
            share * tensor.size_bytes for tensor, share in zip(tensors, shares[op.id], strict=True)
        )
    return "computing" if computing > moving_time_s(size / devices, device) else "moving"
