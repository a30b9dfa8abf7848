"""Collectives as a cluster's compiler runs them: gathers may be all-reduces of zeros but for a device's own part, and
scatters all-reduces of which a device takes its own part.
"""

from __future__ import annotations

from autopar.backends.known import backend_of
from cost_models import collective_time_s
from cost_models.compute import Device, moving_time_s
from cost_models.spans import Group
from cost_models.terms import CollectiveKind


def collective_s(kind: CollectiveKind, size_bytes: int, group: Group, device: Device) -> float:
    """Seconds of a collective, and of the kernel that writes the zeros beforehand where the compiler sums a gather.

    What is taken of a sum is read by whoever reads it.

    Args:
      kind: of a redistribution step that communicates.
      size_bytes: the larger of a device's bytes before and after.
      group: the devices that communicate.
      device: one of them.
    """
    if not backend_of(device.compiler).is_summed(kind, group):
        return collective_time_s(kind, size_bytes, group)
    summed_s = collective_time_s("all_reduce", size_bytes, group)
    if kind != "all_gather":
        return summed_s
    return summed_s + moving_time_s(size_bytes, device) + device.launch_s
