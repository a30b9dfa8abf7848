"""Pinned operators: those whose placements the user's function names itself have no others."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.core.graph import OpGraph, OpNode
from autopar.core.manual import BORDERS
from autopar.core.mesh import DeviceMesh
from autopar.core.pins import BY_HAND, PINNED, Spec
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.errors import InvalidMesh, NoFeasiblePlan
from autopar.search.by_hand import border_strategies


def own_mesh(graph: OpGraph) -> tuple[tuple[str, int], ...] | None:
    """The axes of the mesh that the function names, if it names one."""
    return next((op.params["axes"] for op in graph.ops if op.kind in PINNED and op.params["axes"]), None)


def pinned_strategies(op: OpNode, mesh: DeviceMesh, free: Sequence[Strategy]) -> tuple[Strategy, ...]:
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
        return tuple(Strategy((p,), (p,), (), mesh.product(p.split_axes)) for p in found if p is not None)
    ins, outs = (tuple(Placement(spec) for spec in side) for side in (op.params["ins"], op.params["outs"]))
    split = mesh.product({axis for placement in ins for axis in placement.split_axes})
    return (Strategy(ins, outs, (), split),)


def _check_axes(op: OpNode, mesh: DeviceMesh) -> None:
    own, there = op.params["axes"], mesh.whole.axes
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
    dims = tuple(axes if wanted is None else wanted for axes, wanted in zip(placement.dims, spec, strict=True))
    named = [axis for axes in dims for axis in axes]
    return None if placement.unreduced or len(set(named)) < len(named) else Placement(dims)
