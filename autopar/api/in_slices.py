"""What a process holds: the part of every argument that lies on its devices, as slices of the whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Any

from autopar.errors import InvalidMesh

Slices = tuple[slice, ...]


def slices_of(name: str, shape: Sequence[int], sharding: Any, process: int) -> Slices:
    """The part of an array with this NamedSharding that the devices of `process` hold together, a slice of each dim.

    Raises:
      InvalidMesh: if none of the devices is of this process, or what they hold is no box.
    """
    indices = sharding.devices_indices_map(tuple(shape))
    mine = {_box(index, shape) for device, index in indices.items() if device.process_index == process}
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
