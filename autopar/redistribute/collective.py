"""The sizes of a step: its group, the bytes it is priced by, and the bytes that it puts on the wire."""

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


def wire_bytes(step: Step, shape: Sequence[int], itemsize: int, mesh: DeviceMesh) -> float:
    """The bytes that each device sends in `step`, where no byte is sent in vain.

        all_gather, reduce_scatter, all_to_all   (n - 1) / n * size       n = group_size
        all_reduce                             2 (n - 1) / n * size       reduce-scatter, then all-gather
        permute                                              size         of a device whose shard moves
        slice, mask                                             0

    `size` is `size_bytes`. What a ring sends for the first two rows and all_reduce; all_to_all sends each peer its
    part directly.
    """
    if step.is_local:
        return 0.0
    size = size_bytes(step, shape, itemsize, mesh)
    if step.kind == "permute":
        return float(size)
    members = group_size(step, mesh)
    passes = 2 if step.kind == "all_reduce" else 1
    return passes * (members - 1) / members * size
