"""The same in all processes: what one of them read goes to all, and what differs is named."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from autopar._compat import key_implementation_name, untyped_jax
from autopar.distributed.processes import group_size
from autopar.emit.several import (
    digest,
    gathered,
    is_key,
    is_over_processes,
    on_host,
    sent,
    shown_processes,
)
from autopar.errors import DifferentValues, InvalidOption

_SHOWN = 3


# What one of them read ------------------------------------------------------------------------------------------------


def broadcast(tree: Any, source: int = 0) -> Any:
    """The `tree` that process `source` passes, in all processes, bit for bit; for all to call.

    What the others pass is not looked at: None will do, so that only one has to read a file.

    Args:
      tree: a pytree of arrays, numbers, text and whatever else can be pickled. The processes of a job trust one
        another, as they run one script.
      source: the number of a process.

    Returns:
      The tree with numpy arrays for arrays of JAX, and typed keys as they are.

    Raises:
      InvalidOption: if there is no such process, or an array is over several processes already: names it.
    """
    if not 0 <= source < group_size():
        raise InvalidOption(
            f"broadcast: there is no process {source}: expected 0 to {group_size() - 1}"
        )
    is_source = untyped_jax.process_index() == source
    text = pickle.dumps(_as_host(tree)) if is_source else b""
    return _as_given(pickle.loads(sent(text, source, untyped_jax.devices())))


@dataclass(frozen=True)
class _Keys:
    """Typed keys as they travel."""

    data: np.ndarray[Any, Any]
    implementation: str


def _as_host(tree: Any) -> Any:
    def leaf(path: Any, value: Any) -> Any:
        if is_over_processes(value):
            raise InvalidOption(
                f"broadcast: tree{untyped_jax.tree_util.keystr(path)} is an array over several processes: all have "
                f"it already"
            )
        if is_key(value):
            return _Keys(on_host(value), key_implementation_name(value.dtype))
        return on_host(value) if isinstance(value, jax.Array) else value

    return untyped_jax.tree_util.tree_map_with_path(leaf, tree)


def _as_given(tree: Any) -> Any:
    def leaf(value: Any) -> Any:
        if isinstance(value, _Keys):
            return untyped_jax.random.wrap_key_data(value.data, impl=value.implementation)
        return value

    return untyped_jax.tree_util.tree_map(leaf, tree)


# What differs ---------------------------------------------------------------------------------------------------------


def check_same(tree: Any, name: str = "tree") -> None:
    """Whether all processes hold the same values in `tree`, a pytree of arrays and numbers; for all to call.

    Fingerprints of every leaf are compared, of arrays over several devices those of every shard: what several devices
    hold of an array is to be the same on all of them. No values are exchanged.

    Args:
      tree: values of each process's own, which are to be the same, and arrays over several processes.
      name: what it is called in the error.

    Raises:
      DifferentValues: if they differ: names the leaves and the processes; the same error in all of them.
    """
    own = list(_fingerprints(tree, name))
    told = gathered(json.dumps(own).encode(), untyped_jax.devices())
    differing = list(_differing([json.loads(text) for text in told]))
    if not differing:
        return

    more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    raise DifferentValues(
        f"the processes do not hold the same of {', '.join(differing[:_SHOWN])}{more}. Make it from one seed in all of "
        f"them (compiled.init), or send one's to all: autopar.distributed.broadcast(tree)"
    )


Fingerprint = tuple[str, str, str]
"""The path of a leaf, the part of it, and the digest of that."""


def _fingerprints(tree: Any, name: str) -> Iterator[Fingerprint]:
    for path, value in untyped_jax.tree_util.tree_leaves_with_path(tree):
        called = f"{name}{untyped_jax.tree_util.keystr(path)}"
        for part, elements in _parts(value):
            yield called, part, digest(elements).hex()


def _parts(value: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """The parts of a leaf that this process holds: of an array its shards, of other values all."""
    if not isinstance(value, jax.Array):
        elements = on_host(value)
        yield _box(tuple(slice(None) for _ in elements.shape), elements.shape), elements
        return

    data: Any = untyped_jax.random.key_data(value) if is_key(value) else value
    for shard in data.addressable_shards:
        yield _box(shard.index, data.shape), np.asarray(shard.data)


def _box(index: Sequence[slice], shape: Sequence[int]) -> str:
    spans = [part.indices(size) for part, size in zip(index, shape, strict=True)]
    return ", ".join(f"{start}:{stop}" for start, stop, _ in spans)


def _differing(told: Sequence[Sequence[Fingerprint]]) -> Iterator[str]:
    """The leaves of which not all hold the same, each with the processes that do; `told` by process."""
    leaves: dict[str, dict[str, dict[str, list[int]]]] = {}
    for process, fingerprints in enumerate(told):
        for leaf, part, found in fingerprints:
            holders = leaves.setdefault(leaf, {}).setdefault(part, {}).setdefault(found, [])
            if process not in holders:
                holders.append(process)

    for leaf, parts in leaves.items():
        present = {n for holders in parts.values() for group in holders.values() for n in group}
        absent = [n for n in range(len(told)) if n not in present]
        if absent:
            yield f"{leaf} ({shown_processes(absent)}: nothing)"
            continue
        yield from _parts_that_differ(leaf, parts)


def _parts_that_differ(
    leaf: str, parts: Mapping[str, Mapping[str, Sequence[int]]]
) -> Iterator[str]:
    """The first part of which there are several versions, if there is one."""
    for part, holders in parts.items():
        if len(holders) > 1:
            shown = f"[{part}]" if len(parts) > 1 else ""
            yield f"{leaf}{shown} ({' / '.join(map(shown_processes, holders.values()))})"
            return
