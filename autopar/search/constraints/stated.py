"""Stated: placements as the user's pins write them, with the axes of one device that searches leave out."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.core.placement import Placement
from autopar.search.constraints.matching import Matcher
from autopar.search.constraints.records import Layout, Pin
from autopar.search.task import Planned


def stated(planned: Planned) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
    """The placements of inputs and outputs; those that a pin holds have the axes of one device that it names."""
    stage = planned.plan.stage
    space = planned.ground.space
    ones = frozenset(name for name, size in stage.mesh.whole.axes if size == 1)
    pins = [
        c
        for c in planned.task.all_constraints
        if isinstance(c, Pin) and not ones.isdisjoint(c.layout.axes)
    ]
    if not pins:
        return stage.inputs, stage.outputs

    matcher = Matcher(planned.task.graph, space)
    layouts = {spot.variable: pin.layout for pin in pins for spot in matcher.spots(pin.target)}
    inputs = tuple(
        _as_stated(placement, layouts, n, ones) for n, placement in enumerate(stage.inputs)
    )
    outputs = tuple(
        _as_stated(placement, layouts, space.output_variables.get(n), ones)
        for n, placement in enumerate(stage.outputs)
    )
    return inputs, outputs


def _as_stated(
    placement: Placement, layouts: Mapping[int, Layout], variable: int | None, ones: frozenset[str]
) -> Placement:
    """`placement` with the axes `ones` where the layout of its variable has them, if that is not another placement."""
    if variable is None or variable not in layouts:
        return placement
    named = layouts[variable].dims
    dims = tuple(
        axes
        if wanted is None or tuple(axis for axis in wanted if axis not in ones) != axes
        else wanted
        for axes, wanted in zip(
            placement.dims, (*named, *((),) * (len(placement.dims) - len(named))), strict=True
        )
    )
    return Placement(dims, placement.unreduced, placement.kind)
