"""Modes: sets of constraints by name."""

from __future__ import annotations

from typing import Literal, get_args

from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement, StepKind
from autopar.errors import InvalidOption
from autopar.search.space import Pins

Mode = Literal["auto", "data_parallel"]


_OF_DATA_PARALLELISM: tuple[StepKind, ...] = ("all_reduce", "slice", "mask")


def step_kinds_of(mode: str) -> tuple[tuple[StepKind, ...], ...]:
    """The redistribution steps that `mode` allows, () for all; the second set is tried where the first leaves no plan.

    data_parallel: values are reduced, never gathered or sent elsewhere, so what is split along the batch stays so.
    """
    return (_OF_DATA_PARALLELISM, ()) if mode == "data_parallel" else ((),)


def pins_of(mode: str, graph: OpGraph, mesh: DeviceMesh) -> Pins:
    """The constraints of `mode` on `graph`.

    auto: none. data_parallel: data is split along its first dim over the whole mesh where that divides evenly, every
    other input is replicated; the rest is searched.

    Raises:
      InvalidOption: for an unknown mode.
    """
    if mode not in get_args(Mode):
        raise InvalidOption(f"unknown mode {mode!r}; the modes are {', '.join(get_args(Mode))}")
    if mode == "auto":
        return Pins()
    data = set(graph.batch_inputs)
    pins: dict[int, Placement] = {}
    for position, tensor in enumerate(graph.inputs):
        split = Placement((mesh.names,) + ((),) * (tensor.ndim - 1)) if tensor.ndim else Placement(())
        usable = position in data and split.fits(tensor.shape, mesh)
        pins[position] = split if usable else Placement.replicated(tensor.ndim)
    return Pins(pins)
