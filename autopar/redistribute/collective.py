"""The sizes of a step: its group, and the bytes it is priced by."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.core.mesh import DeviceMesh
from autopar.redistribute.step import Step


def group_size(step: Step, mesh: DeviceMesh) -> int:
    """The number of devices that take part in one instance of `step`."""
    return mesh.product(step.axes)


def size_bytes(step: Step, shape: Sequence[int], itemsize: int, mesh: DeviceMesh) -> int:
    """The larger of a device's bytes before and after `step`: the size that a `StepPrice` is asked with.

    Args:
      step: the step.
      shape: the tensor's global shape.
      itemsize: bytes of one element.
      mesh: the devices.
    """
    return itemsize * max(step.before.local_size(shape, mesh), step.after.local_size(shape, mesh))
