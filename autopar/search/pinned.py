"""Pinned operators: those whose placements the user's function names itself have no others."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.pins import PINNED, Spec
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.errors import InvalidMesh, NoFeasiblePlan


def own_mesh(graph: OpGraph) -> tuple[tuple[str, int], ...] | None:
    """The axes of the mesh that the function names, if it names one."""
    return next((op.params["axes"] for op in graph.ops if op.kind in PINNED), None)


def pinned_strategies(op: OpNode, mesh: DeviceMesh, free: Sequence[Strategy]) -> tuple[Strategy, ...]:
    """The strategies of a pinned operator: its own placements; where a dim is left open, those of `free` that agree.

    Raises:
      InvalidMesh: if the mesh lacks an axis that the function names.
      NoFeasiblePlan: if a dim does not divide evenly.
    """
    missing = [f"{name}={size}" for name, size in op.params["axes"] if dict(mesh.axes).get(name) != size]
    if missing:
        raise InvalidMesh(
            f"the function's own sharding ({op.source}) names mesh axes {', '.join(missing)}, which mesh {mesh} has "
            f"not. Pass mesh={dict(op.params['axes'])}, or take the sharding out of the function."
        )
    specs = (*op.params["ins"], *op.params["outs"])
    if any(axes is None for spec in specs for axes in spec):
        return tuple(s for s in free if all(map(_agrees, (*s.ins, *s.outs), specs)))
    for tensor, spec in zip((*op.ins, *op.outs), specs, strict=True):
        if not Placement(spec).fits(tensor.shape, mesh):
            raise NoFeasiblePlan(
                f"the function's own sharding ({op.source}) places a tensor of shape {tensor.shape} {Placement(spec)} "
                f"on mesh {mesh}: every dim must divide evenly. Change the sharding or the shape."
            )
    ins, outs = (tuple(Placement(spec) for spec in side) for side in (op.params["ins"], op.params["outs"]))
    split = mesh.product({axis for placement in ins for axis in placement.split_axes})
    return (Strategy(ins, outs, (), split),)


def _agrees(placement: Placement, spec: Spec) -> bool:
    dims = zip(placement.dims, spec, strict=True)
    return not placement.unreduced and all(wanted is None or axes == wanted for axes, wanted in dims)
