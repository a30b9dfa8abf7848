"""Pinned operators: those whose placements the user's function names itself have no others.

So have the operators of a shard_map of the user's, and its borders: along the manual axes nothing is chosen; along the
others an operator has the strategies it has elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from autopar.core.graph import OpGraph, OpNode
from autopar.core.manual import BORDERS, COLLECTIVES, ENTER, manual_axes
from autopar.core.mesh import DeviceMesh
from autopar.core.pins import BY_HAND, PINNED, Spec
from autopar.core.placement import Placement
from autopar.core.strategy import Exchange, Hop, Strategy
from autopar.errors import InvalidMesh, NoFeasiblePlan


def own_mesh(graph: OpGraph) -> tuple[tuple[str, int], ...] | None:
    """The axes of the mesh that the function names, if it names one."""
    return next(
        (op.params["axes"] for op in graph.ops if op.kind in PINNED and op.params["axes"]), None
    )


def pinned_strategies(
    op: OpNode, mesh: DeviceMesh, free: Sequence[Strategy]
) -> tuple[Strategy, ...]:
    """The strategies of a pinned operator: its own placements; where a dim is left open, as in those of `free`.

    All of `free` where the function names no axis of any mesh.

    Raises:
      InvalidMesh: if the mesh lacks an axis that the function names.
      NoFeasiblePlan: if a dim does not divide evenly.
    """
    if not op.params["axes"]:
        return tuple(free)

    _check_axes(op, mesh)
    specs = (*op.params["ins"], *op.params["outs"])
    for tensor, spec in zip((*op.ins, *op.outs), specs, strict=True):
        stated = Placement(tuple(axes or () for axes in spec))
        if not stated.fits(tensor.shape, mesh):
            raise NoFeasiblePlan(
                f"the function's own sharding ({op.source}) places a tensor of shape {tensor.shape} {stated} "
                f"on mesh {mesh}: every dim must divide evenly. Change the sharding or the shape."
            )

    if op.kind in BORDERS:
        return border_strategies(op, mesh)

    if any(axes is None for spec in specs for axes in spec):
        (spec,) = op.params["outs"]
        found = dict.fromkeys(filled(strategy.outs[0], spec) for strategy in free)
        return tuple(
            Strategy((p,), (p,), (), mesh.product(p.split_axes)) for p in found if p is not None
        )

    ins, outs = (
        tuple(Placement(spec) for spec in side) for side in (op.params["ins"], op.params["outs"])
    )
    split = mesh.product({axis for placement in ins for axis in placement.split_axes})
    return (Strategy(ins, outs, (), split),)


def _check_axes(op: OpNode, mesh: DeviceMesh) -> None:
    own = op.params["axes"]
    there = mesh.whole.axes
    missing = [f"{name}={size}" for name, size in own if size > 1 and (name, size) not in there]
    if missing:
        raise InvalidMesh(
            f"the function's own sharding ({op.source}) names mesh axes {', '.join(missing)}, which mesh {mesh} has "
            f"not. Pass mesh={dict(own)}, or take the sharding out of the function."
        )

    if op.kind in BY_HAND and own != there:
        raise InvalidMesh(
            f"the function's own shard_map ({op.source}) runs on the mesh {DeviceMesh(own)}, and its body knows no "
            f"other: mesh {mesh} has other axes, or the same in another order. Pass mesh={dict(own)}."
        )


def filled(placement: Placement, spec: Spec) -> Placement | None:
    """`spec` with its open dims as in `placement`; None where that is unreduced, or an axis would split two dims."""
    dims = tuple(
        axes if wanted is None else wanted
        for axes, wanted in zip(placement.dims, spec, strict=True)
    )
    named = [axis for axes in dims for axis in axes]
    return None if placement.unreduced or len(set(named)) < len(named) else Placement(dims)


def strategies_by_hand(
    op: OpNode, mesh: DeviceMesh, free: Sequence[Strategy]
) -> tuple[Strategy, ...]:
    """Those of `free` that leave the manual axes alone; with what the user's own collective sends."""
    manual = manual_axes(op)
    found = [strategy for strategy in free if manual.isdisjoint(_axes(strategy))]
    if op.kind in COLLECTIVES:
        found = [replace(strategy, exchanges=_exchanges(op, mesh, strategy)) for strategy in found]
    return tuple(found)


def border_strategies(op: OpNode, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    """The shard along the border's own axes, in every placement along those that are not manual on either side.

    The dims of the whole are split by the user's axes first, within a shard by the others.
    """
    (outer,) = op.params["ins"] if op.kind == ENTER else op.params["outs"]
    whole, shard = (op.ins[0], op.outs[0]) if op.kind == ENTER else (op.outs[0], op.ins[0])
    own = Placement(tuple(axes or () for axes in outer))
    left = [axis for axis in mesh.names if axis not in shard.manual and mesh.product((axis,)) > 1]
    found: list[Strategy] = []
    for dims in product(range(-1, shard.ndim), repeat=len(left)):
        inner = tuple(
            tuple(a for a, d in zip(left, dims, strict=True) if d == dim)
            for dim in range(shard.ndim)
        )
        inside = Placement(inner)
        outside = Placement(tuple(a + b for a, b in zip(own.dims, inner, strict=True)))
        if inside.fits(shard.shape, mesh) and outside.fits(whole.shape, mesh):
            ends = (outside, inside) if op.kind == ENTER else (inside, outside)
            found.append(Strategy((ends[0],), (ends[1],), (), mesh.product(outside.split_axes)))

    return tuple(found)


def _axes(strategy: Strategy) -> set[str]:
    placed = {
        axis for placement in (*strategy.ins, *strategy.outs) for axis in placement.varying_axes
    }
    return placed | {axis for exchange in strategy.exchanges for axis in exchange.axes}


def _exchanges(op: OpNode, mesh: DeviceMesh, strategy: Strategy) -> tuple[Exchange, ...]:
    axes = tuple(axis for axis in mesh.names if axis in op.params["axes"])
    if not axes:
        return ()
    kind = COLLECTIVES[op.kind]
    sides = (op.ins[0], strategy.ins[0]), (op.outs[0], strategy.outs[0])
    size = max(
        placement.local_size(tensor.shape, mesh) * tensor.itemsize for tensor, placement in sides
    )
    # JAX counts in mesh order
    hop = Hop(0, "stated", op.params["pairs"]) if kind == "permute" else None
    return (Exchange(kind, axes, size, 0, hop),)
