"""Stored: the leaves of a state as orbax takes them, what is known of each, and how they differ from those wanted.

They are stored by their paths, so that any tree can be. Orbax takes arrays with elements, of JAX or numpy, typed keys
among them: numbers become arrays without dims, and leaves without elements are made anew.
"""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import numpy as np

from autopar._compat import untyped_jax
from autopar.errors import CheckpointError

Leaf = tuple[tuple[int, ...], str]
"""Shape and dtype."""
_SHOWN = 5


def stored(state: Any) -> dict[str, Any]:
    """The arrays of `state`, as they are written."""
    return {
        name: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        for name, leaf in _named(state)
        if not _is_empty(leaf)
    }


def wanted(state: Any) -> dict[str, Any]:
    """What is to be read for `state`, a tree of arrays or of what says their shape, dtype and sharding."""
    return {name: _abstract(leaf) for name, leaf in _named(state) if not _is_empty(leaf)}


def restored(state: Any, found: dict[str, Any]) -> Any:
    """What was `found` for the leaves of `state`, with those that have no elements."""
    leaves = [
        _empty(leaf) if _is_empty(leaf) else _as_given(leaf, found[name])
        for name, leaf in _named(state)
    ]
    return untyped_jax.tree.unflatten(untyped_jax.tree.structure(state), leaves)


def leaves_of(state: Any) -> dict[str, Leaf]:
    """Shape and dtype of every leaf of `state`, by its path.

    Raises:
      CheckpointError: one is no array and no number.
    """
    found: dict[str, Leaf] = {}
    for name, leaf in _named(state):
        shape, dtype = _type(leaf)
        if getattr(dtype, "kind", "") in ("O", "U", "S", "M", "m"):
            raise CheckpointError(
                f"state{name} is {leaf!r}, of type {type(leaf).__qualname__}, which cannot be stored: a state holds "
                f"arrays and numbers. Leave it out."
            )
        found[name] = (shape, str(dtype))
    return found


def difference(there: dict[str, Leaf], here: dict[str, Leaf]) -> str:
    """Which leaves of a checkpoint, `there`, are not those that are wanted, and how; "" if all are."""
    names = [
        name
        for name in {**here, **there}
        if _canonical(there.get(name)) != _canonical(here.get(name))
    ]
    rows = [
        f"state{name} is {_show(there.get(name))} there and {_show(here.get(name))} here"
        for name in names[:_SHOWN]
    ]
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return "; ".join([*rows, *more])


def _type(leaf: Any) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype as they are, which for values of the host need not be those that JAX gives them."""
    value = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return tuple(value.shape), value.dtype


def _canonical(leaf: Leaf | None) -> Leaf | None:
    """As JAX has it: where a step turned 64 bits of the host into 32, the same leaf is meant."""
    if leaf is None or leaf[1].startswith("key<"):
        return leaf
    return leaf[0], str(jax.dtypes.canonicalize_dtype(np.dtype(leaf[1])))


def _named(state: Any) -> list[tuple[str, Any]]:
    leaves = untyped_jax.tree_util.tree_leaves_with_path(state)
    return [(untyped_jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def _abstract(leaf: Any) -> Any:
    shape, dtype = _type(leaf)
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return np.empty(shape, dtype)
    return untyped_jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _empty(leaf: Any) -> Any:
    """An array like `leaf`, which has no elements."""
    shape, dtype = _type(leaf)
    sharding = getattr(leaf, "sharding", None)
    nothing = np.empty(shape, dtype)
    if sharding is None:
        return nothing
    return untyped_jax.make_array_from_callback(shape, sharding, nothing.__getitem__)


def _as_given(leaf: Any, found: Any) -> Any:
    """`found`, as a number where `leaf` is one."""
    if isinstance(leaf, np.generic):
        return found[()]
    return found.item() if isinstance(leaf, bool | int | float | complex) else found


def _is_empty(leaf: Any) -> bool:
    return prod(_type(leaf)[0]) == 0


def _show(leaf: Leaf | None) -> str:
    return "missing" if leaf is None else f"{leaf[1]}{list(leaf[0])}"
