"""Machine: what is known of the devices present without measuring: names, numbers, memory, and a cluster like them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import date
from typing import Any, Literal
from zlib import crc32

from autopar._compat import jax_version
from autopar.calibration.cases import Extent
from autopar.calibration.clock import Agree
from cost_models import Cluster, UnknownClusterError, cluster_of_devices
from cost_models.fitted_profile import Machine


def machine_of(devices: Sequence[Any], name: str | None, agree: Agree, day: date) -> Machine:
    """What is known of `devices`, which lie process by process, as many in each.

    Raises:
      ValueError: if processes have different numbers of devices.
    """
    processes = sorted({device.process_index for device in devices})
    counts = {sum(d.process_index == process for d in devices) for process in processes}
    if len(counts) > 1:
        raise ValueError(
            f"processes have {sorted(counts)} devices; calibrate as many devices in every process"
        )

    inner = ("device", counts.pop())
    levels = (inner,) if len(processes) == 1 else (("process", len(processes)), inner)
    kind: str = devices[0].device_kind
    usual = (
        f"{kind.lower().replace(' ', '-')}-{'x'.join(str(size) for _, size in levels)}-calibrated"
    )
    return Machine(
        name=name or usual,
        device=kind,
        levels=levels,
        memory_bytes=_memory_bytes(devices[0], agree),
        shared=devices[0].platform == "cpu",
        how=_how(devices, len(processes)),
        day=day,
        like=_like(kind, len(devices)),
        compiler=_COMPILERS.get(devices[0].platform, ""),
    )


_COMPILERS: dict[str, Literal["xla_cpu", "xla_tpu"]] = {"cpu": "xla_cpu", "tpu": "xla_tpu"}
"""What a device's profile says of who compiles for it, by JAX's name of the platform."""


def extent_of(machine: Machine, quick: bool) -> Extent:
    """How large the cases are: on processors sides of 1024, on accelerators of 4096; arrays take 1/64 of the memory."""
    part = machine.device_count if machine.shared else 1
    most_bytes = min(2.0**30, machine.memory_bytes / 32) / part
    return Extent(
        1024 if machine.shared else 4096, most_bytes, quick, machine.compiler == "xla_cpu"
    )


def _how(devices: Sequence[Any], processes: int) -> str:
    """On what was measured, and with what, for the source of every number."""
    what = f"{len(devices)} devices of kind {devices[0].device_kind}"
    cores = (
        f" that share {os.cpu_count()} cores ({platform.machine()})"
        if devices[0].platform == "cpu"
        else ""
    )
    split = f" in {processes} processes" if processes > 1 else ""
    return f"autopar calibrate, JAX {jax_version()}, {what}{cores}{split}"


def _memory_bytes(device: Any, agree: Agree) -> float:
    """Of an accelerator what JAX may use of its memory; else what this machine has, and all others as much."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) * _host_count(agree)


def _host_count(agree: Agree) -> int:
    """The number of machines, as far as their names tell: each process asks for the names above its own."""
    mine = float(crc32(platform.node().encode()) % 2**20)
    count = 0
    highest = agree(mine)
    while highest >= 0:
        count += 1
        highest = agree(mine if mine < highest else -1.0)
    return count


def _like(kind: str, count: int) -> Cluster | None:
    try:
        return cluster_of_devices(kind, count)
    except UnknownClusterError:
        return None
