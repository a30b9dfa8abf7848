"""Host values: arguments that one process holds alone, where the devices of a plan belong to several.

Each process puts its own shards of such a value on its devices, so all of them have to hold the same. Their digests are
compared before any shard is placed: one collective of 32 bytes a device, beside what it takes to hash the values.
Arrays that are over all processes already are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import jax
import numpy as np

from autopar._compat import is_key_dtype, key_data
from autopar.api.call import Signature, show_type, type_of
from autopar.emit.several import gathered_rows
from autopar.errors import DifferentValues, SignatureMismatch
from autopar.trace.arguments import Arguments

_SHOWN = 3
_DIGEST_BYTES = 16
_NOT_HOST = bytes(_DIGEST_BYTES)


def same_everywhere(names: Sequence[str], values: Sequence[Any], devices: Sequence[Any]) -> list[Any]:
    """`values` with those that this process holds alone, but for typed keys, as numpy arrays.

    For all processes of `devices` to call.

    Args:
      names: what each value is called, in errors.
      values: arrays and numbers, as many in all processes.
      devices: those of the plan.

    Raises:
      DifferentValues: if the processes do not hold the same; the same error in all of them.
    """
    hosts = {n: _on_host(value) for n, value in enumerate(values) if not is_over_processes(value)}
    if not hosts:
        return list(values)
    digests = b"".join(_digest(hosts[n]) if n in hosts else _NOT_HOST for n in range(len(values)))
    summaries = gathered_rows(sha256(digests).digest(), devices)
    if len(set(summaries.values())) > 1:
        raise DifferentValues(_difference(names, gathered_rows(digests, devices)))
    return [hosts[n] if n in hosts and not _is_key(value) else value for n, value in enumerate(values)]


def is_over_processes(value: Any) -> bool:
    """Whether `value` is an array over devices of several processes."""
    return isinstance(value, jax.Array) and not value.is_fully_addressable


def check_global_shapes(arguments: Arguments, values: Sequence[Any], planned: Signature) -> None:
    """Whether arrays over several processes have the shapes that a plan was asked for.

    Raises:
      SignatureMismatch: if one has not: so it is where each process passes rows that are others than the plan wants.
    """
    for name, value, aval, wanted in zip(arguments.leaf_names, values, arguments.avals, planned.types, strict=True):
        if is_over_processes(value) and type_of(aval) != wanted:
            raise SignatureMismatch(
                f"{name} is an array over several processes, {aval.dtype}{list(aval.shape)}, but a plan was asked for "
                f"{show_type(wanted)}. If each process has rows of its own, plan.in_slices() says which those are, and "
                f"jax.make_array_from_process_local_data(sharding, rows) makes one array of them. To plan for this "
                f"shape too, ask for it: compiled.plan(...) with jax.ShapeDtypeStructs."
            )


def _on_host(value: Any) -> np.ndarray[Any, Any]:
    """The elements of `value`; of typed keys their data."""
    return np.asarray(key_data(value) if _is_key(value) else value)


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and is_key_dtype(value.dtype)


def _digest(value: np.ndarray[Any, Any]) -> bytes:
    found = sha256(f"{value.dtype} {value.shape} ".encode())
    elements: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    found.update(elements)
    return found.digest()[:_DIGEST_BYTES]


def _difference(names: Sequence[str], digests: Mapping[int, bytes]) -> str:
    """What differs, from the digests of all values by process."""
    found: list[str] = []
    for n, name in enumerate(names):
        holders: dict[bytes, list[int]] = {}
        for process, row in digests.items():
            holders.setdefault(row[n * _DIGEST_BYTES : (n + 1) * _DIGEST_BYTES], []).append(process)
        if len(holders) > 1:
            found.append(f"{name} ({' / '.join(_held(digest, group) for digest, group in holders.items())})")
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f"the processes pass different values of {', '.join(found[:_SHOWN])}{more}. Each has to pass the same whole "
        f"value. If they are each process's own rows, make one array of them by "
        f"jax.make_array_from_process_local_data(sharding, rows), with plan.in_shardings() and plan.in_slices()."
    )


def _held(digest: bytes, processes: Sequence[int]) -> str:
    who = f"process{'es' if len(processes) > 1 else ''} {', '.join(map(str, processes))}"
    return f"{who}: an array over all" if digest == _NOT_HOST else who
