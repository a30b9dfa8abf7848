"""several: what a program needs where its devices belong to several processes (jax.distributed)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from autopar._compat import as_keys, is_key_dtype, key_data, make_mesh, untyped_jax, without_mesh

DIGEST_BYTES = 16
_PIECE_BYTES = 64 * 2**20


def in_order(devices: Sequence[Any]) -> tuple[Any, ...]:
    """`devices` as clusters number theirs: TPUs along their torus, others with those of one process beside each other,
    as processes are numbered.

    On a torus the devices of one process are a block of it, such as 2x2, and no line.
    """
    return tuple(sorted(devices, key=_place))


def _place(device: Any) -> tuple[int, ...]:
    """What a device is sorted by: its slice and coordinates, the last of which is the torus's first; or its process."""
    if device.platform != "tpu":  # others may have coordinates too, which say nothing of links
        return (device.process_index, device.id)
    return (getattr(device, "slice_index", 0) or 0, *reversed(device.coords), device.core_on_chip)


def this_process() -> int:
    """The number of this process."""
    return untyped_jax.process_index()


def spans_processes(devices: Sequence[Any]) -> bool:
    """Whether `devices` belong to more than one process."""
    return len({device.process_index for device in devices}) > 1


def placed(value: Any, sharding: NamedSharding) -> Any:
    """`value` as an array with this sharding.

    Where the devices belong to several processes, each process has to hold the whole of a `value` that is not such an
    array already, the same in all of them, and puts its own shards where they belong: nothing is sent, and nothing
    compared (see `api.host_values`).
    """
    if sharding.is_fully_addressable or not _is_whole_here(value):
        return untyped_jax.device_put(value, sharding)
    if isinstance(value, jax.Array) and is_key_dtype(value.dtype):
        return as_keys(placed(key_data(value), sharding), value)
    host = np.asarray(value)
    return untyped_jax.make_array_from_callback(host.shape, sharding, host.__getitem__)


def all_placed(values: Sequence[Any], shardings: Sequence[NamedSharding]) -> list[Any]:
    """`values` as arrays with these shardings, as `placed`; at once where the devices are all this process's own."""
    if not values:
        return []
    if all(sharding.is_fully_addressable for sharding in shardings):
        return untyped_jax.device_put(list(values), list(shardings))
    return [placed(value, sharding) for value, sharding in zip(values, shardings, strict=True)]


def with_copies(arrays: Sequence[Any], positions: Iterable[int]) -> list[Any]:
    """`arrays`, of which those at `positions` are copied: what was put somewhere may share memory with others."""
    found = list(arrays)
    for n in positions:
        found[n] = untyped_jax.device_put(found[n], found[n].sharding, may_alias=False)
    return found


# What processes hold, and tell one another ----------------------------------------------------------------------------


def is_over_processes(value: Any) -> bool:
    """Whether `value` is an array over devices of several processes."""
    return isinstance(value, jax.Array) and not value.is_fully_addressable


def is_key(value: Any) -> bool:
    """Whether `value` is an array of typed PRNG keys."""
    return isinstance(value, jax.Array) and is_key_dtype(value.dtype)


def on_host(value: Any) -> np.ndarray[Any, Any]:
    """The elements of `value`; of typed keys their data."""
    return np.asarray(key_data(value) if is_key(value) else value)


def digest(value: np.ndarray[Any, Any]) -> bytes:
    """A fingerprint of the dtype, shape and elements, of DIGEST_BYTES."""
    found = sha256(f"{value.dtype} {value.shape} ".encode())
    elements: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    found.update(elements)
    return found.digest()[:DIGEST_BYTES]


def shown_processes(processes: Sequence[int]) -> str:
    """Numbers of processes, as errors name them."""
    return f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"


def gathered(text: bytes, devices: Sequence[Any]) -> tuple[bytes, ...]:
    """What each process that has any of `devices` passes as `text`, by the number of the process; for all to call."""
    lengths = gathered_rows(len(text).to_bytes(8, "little"), devices).values()
    length = max(int.from_bytes(row, "little") for row in lengths)
    padded = len(text).to_bytes(8, "little") + text.ljust(length, b"\0")
    rows = gathered_rows(padded, devices).values()
    return tuple(row[8 : 8 + int.from_bytes(row[:8], "little")] for row in rows)


def gathered_rows(own: bytes, devices: Sequence[Any]) -> dict[int, bytes]:
    """The bytes of each process, of one length in all, by its number: one collective, for all to call."""
    gather = _gather(tuple(devices))
    row: Any = np.frombuffer(own, np.uint8)[None]

    def of_device(_index: Any) -> Any:
        return row

    shape = len(gather.devices), row.shape[1]
    with without_mesh():
        mine = untyped_jax.make_array_from_callback(shape, gather.split, of_device)
        everything = np.asarray(gather.run(mine).addressable_data(0))
    first = {device.process_index: n for n, device in reversed(list(enumerate(gather.devices)))}
    return {process: everything[n].tobytes() for process, n in sorted(first.items())}


def sent(text: bytes, source: int, devices: Sequence[Any]) -> bytes:
    """What process `source` passes as `text`, in all processes of `devices`: for all to call; others' is not looked at.

    In pieces, as each device holds one of each process while they are put together: a sum of bytes, all others zero.
    """
    gather = _gather(tuple(devices))
    length = int.from_bytes(
        gathered_rows(len(text).to_bytes(8, "little"), devices)[source], "little"
    )
    size = min(_PIECE_BYTES, 1 << max(length - 1, 0).bit_length())
    first = [device.process_index for device in gather.devices].index(source)

    found: list[bytes] = []
    for start in range(0, length, size):
        piece = np.frombuffer(text[start : start + size].ljust(size, b"\0"), np.uint8)

        def of_device(index: Any, piece: Any = piece) -> Any:
            return (piece if index[0].indices(len(gather.devices))[0] == first else 0 * piece)[None]

        with without_mesh():
            mine = untyped_jax.make_array_from_callback(
                (len(gather.devices), size), gather.split, of_device
            )
            found.append(np.asarray(gather.add(mine).addressable_data(0)).tobytes())
    return b"".join(found)[:length]


@dataclass(frozen=True)
class _Gather:
    """One row of an array for each device, gathered on all of them, or summed."""

    devices: tuple[Any, ...]
    split: NamedSharding
    run: Any
    add: Any


@lru_cache(maxsize=8)
def _gather(devices: tuple[Any, ...]) -> _Gather:
    """Made once for each set of devices: steps exchange digests of what they are passed."""
    ordered = in_order(devices)
    mesh = make_mesh((len(ordered),), ("device",), ordered)
    whole = NamedSharding(mesh, PartitionSpec())
    return _Gather(
        ordered,
        NamedSharding(mesh, PartitionSpec("device")),
        untyped_jax.jit(_same, out_shardings=whole),
        untyped_jax.jit(_sum, out_shardings=whole),
    )


def _same(x: Any) -> Any:
    return x


def _sum(rows: Any) -> Any:
    return rows.sum(axis=0, dtype=rows.dtype)


def _is_whole_here(value: Any) -> bool:
    """Whether this process can read all of `value`."""
    return (
        not isinstance(value, jax.Array) or value.is_fully_addressable or value.is_fully_replicated
    )
