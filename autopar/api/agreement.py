"""Agreement: where the devices belong to several processes, all of these run the plan of the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from autopar.api.make import task_of
from autopar.api.packed_plan import PackedPlan
from autopar.api.runner import Bound
from autopar.emit.several import gathered, spans_processes, this_process
from autopar.errors import InvalidMesh, SignatureMismatch
from autopar.search.search import restore


def agreed(bound: Bound, devices: Sequence[Any]) -> Bound:
    """`bound` with the plan of the first process, for each process that has any of `devices` to call.

    Searches are deterministic, so plans differ only where the clock, the user's settings or the function differ.

    Raises:
      InvalidMesh: if this process has none of the devices, or the processes have them in other orders.
      SignatureMismatch: if the processes traced different functions.
    """
    if not spans_processes(devices):
        return bound
    processes = sorted({device.process_index for device in devices})
    if this_process() not in processes:
        raise InvalidMesh(
            f"this is process {this_process()}, but the plan's devices belong to processes {processes}: call the "
            "compiled function in these only"
        )
    packed = PackedPlan.of(bound.record).model_dump_json().encode()
    order = ",".join(str(device.id) for device in devices)
    own = f"{order} {bound.record.fingerprint} {sha256(packed).hexdigest()}".encode()
    told = [row.decode().split() for row in gathered(own, devices)]
    _refuse_differences(told, processes)
    if len({plan for _, _, plan in told}) == 1:
        return bound
    is_first = this_process() == processes[0]
    first = gathered(packed if is_first else b"", devices)[0]
    return bound if is_first else _with_plan(bound, first)


def _refuse_differences(told: Sequence[Sequence[str]], processes: Sequence[int]) -> None:
    """The same in all processes, so that all of them raise."""
    for process, (order, function, _) in zip(processes, told, strict=True):
        if order != told[0][0]:
            raise InvalidMesh(
                f"processes {processes[0]} and {process} give the devices in different orders, {told[0][0]} and "
                f"{order}: give the same in all"
            )
        if function != told[0][1]:
            raise SignatureMismatch(
                f"processes {processes[0]} and {process} traced different functions ({told[0][1][:12]}, "
                f"{function[:12]}): call the same function with arguments of the same shapes in all, or save a plan in "
                "one and load it in all"
            )


def _with_plan(bound: Bound, packed: bytes) -> Bound:
    record = PackedPlan.model_validate_json(packed).plan()
    planned = restore(task_of(bound.traced, bound.settings, bound.cluster), record)
    return replace(bound, planned=planned)
