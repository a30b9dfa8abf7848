"""Processes: what several processes that share the devices of a plan have to have in common, and what each holds.

All of them run the plan of the first. Arguments that one process holds alone have to be the same in all, as each puts
its own shards of them on its devices: their digests are compared before any shard is placed. That is one collective of
32 bytes a device, beside what it takes to hash the values; arrays that are over all processes are not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from math import prod
from typing import Any

from autopar.api.bound import Bound, task_of
from autopar.api.call import Signature, show_type, type_of
from autopar.api.packed_plan import PackedPlan
from autopar.emit.several import (
    DIGEST_BYTES,
    digest,
    gathered,
    gathered_rows,
    is_key,
    is_over_processes,
    on_host,
    shown_processes,
    spans_processes,
    this_process,
)
from autopar.errors import DifferentValues, InvalidMesh, SignatureMismatch
from autopar.search.search import restore
from autopar.trace.arguments import Arguments

Slices = tuple[slice, ...]
_SHOWN = 3
_NOT_HOST = bytes(DIGEST_BYTES)


# One plan -------------------------------------------------------------------------------------------------------------


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


# The same values ------------------------------------------------------------------------------------------------------


def same_everywhere(
    names: Sequence[str], values: Sequence[Any], devices: Sequence[Any]
) -> list[Any]:
    """`values` with those that this process holds alone, but for typed keys, as numpy arrays.

    For all processes of `devices` to call.

    Args:
      names: what each value is called, in errors.
      values: arrays and numbers, as many in all processes.
      devices: those of the plan.

    Raises:
      DifferentValues: if the processes do not hold the same; the same error in all of them.
    """
    hosts = {n: on_host(value) for n, value in enumerate(values) if not is_over_processes(value)}
    if not hosts:
        return list(values)

    digests = b"".join(digest(hosts[n]) if n in hosts else _NOT_HOST for n in range(len(values)))
    summaries = gathered_rows(sha256(digests).digest(), devices)
    if len(set(summaries.values())) > 1:
        differing = _differing(names, gathered_rows(digests, devices))
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise DifferentValues(
            f"the processes pass different values of {', '.join(differing[:_SHOWN])}{more}. Each has to pass the same "
            f"whole value. If they are each process's own rows, make one array of them by "
            f"jax.make_array_from_process_local_data(sharding, rows), with plan.in_shardings() and plan.in_slices()."
        )

    return [
        hosts[n] if n in hosts and not is_key(value) else value for n, value in enumerate(values)
    ]


def check_global_shapes(arguments: Arguments, values: Sequence[Any], planned: Signature) -> None:
    """Whether arrays over several processes have the shapes that a plan was asked for.

    Raises:
      SignatureMismatch: if one has not: so it is where each process passes rows that are others than the plan wants.
    """
    for name, value, aval, wanted in zip(
        arguments.leaf_names, values, arguments.avals, planned.types, strict=True
    ):
        if is_over_processes(value) and type_of(aval) != wanted:
            raise SignatureMismatch(
                f"{name} is an array over several processes, {aval.dtype}{list(aval.shape)}, but a plan was asked for "
                f"{show_type(wanted)}. If each process has rows of its own, plan.in_slices() says which those are, and "
                f"jax.make_array_from_process_local_data(sharding, rows) makes one array of them. To plan for this "
                f"shape too, ask for it: compiled.plan(...) with jax.ShapeDtypeStructs."
            )


def _differing(names: Sequence[str], digests: Mapping[int, bytes]) -> list[str]:
    """What differs and who holds it, from the digests of all values by process."""
    found: list[str] = []
    for n, name in enumerate(names):
        holders: dict[bytes, list[int]] = {}
        for process, row in digests.items():
            holders.setdefault(row[n * DIGEST_BYTES : (n + 1) * DIGEST_BYTES], []).append(process)
        if len(holders) > 1:
            found.append(
                f"{name} ({' / '.join(_held(found_digest, group) for found_digest, group in holders.items())})"
            )
    return found


def _held(held: bytes, processes: Sequence[int]) -> str:
    who = shown_processes(processes)
    return f"{who}: an array over all" if held == _NOT_HOST else who


# What a process holds -------------------------------------------------------------------------------------------------


def slices_of(name: str, shape: Sequence[int], sharding: Any, process: int) -> Slices:
    """The part of an array with this NamedSharding that the devices of `process` hold together, a slice of each dim.

    Raises:
      InvalidMesh: if none of the devices is of this process, or what they hold is no box.
    """
    indices = sharding.devices_indices_map(tuple(shape))
    mine = {
        _box(index, shape) for device, index in indices.items() if device.process_index == process
    }
    if not mine:
        raise InvalidMesh(f"process {process} has none of the plan's devices. Name one that has.")

    spans = [sorted({box[dim] for box in mine}) for dim in range(len(shape))]
    is_box = len(mine) == prod(map(len, spans)) and all(map(_is_row, spans))
    if not is_box:
        shown = ", ".join(str(list(box)) for box in sorted(mine))
        raise InvalidMesh(
            f"process {process} holds {shown} of {name}, which no slices name. Make the array by "
            f"jax.make_array_from_callback, which asks for each of them."
        )

    return tuple(slice(parts[0][0], parts[-1][1]) for parts in spans)


def _box(index: Sequence[slice], shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _is_row(parts: Collection[tuple[int, int]]) -> bool:
    """Whether stretches, in order, follow each other without a gap."""
    ends = [end for _, end in parts]
    return [start for start, _ in parts][1:] == ends[:-1]
