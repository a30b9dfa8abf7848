"""Stored: a state as orbax takes it, what is known of its leaves, and how they differ from those that are wanted.

Orbax takes arrays with elements, of JAX or numpy, typed keys among them. Numbers become arrays without dims; where a
leaf has no elements, None is stored, and it is made anew.
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
_ROOT = "state"
"""Above the state's own structure, which may be a single array."""


def stored(state: Any) -> dict[str, Any]:
    """The arrays of `state`, as they are written."""
    return {_ROOT: untyped_jax.tree.map(_written, state)}


def wanted(state: Any) -> dict[str, Any]:
    """What is to be read for `state`, a tree of arrays or of what says their shape, dtype and sharding."""
    return {_ROOT: untyped_jax.tree.map(_read, state)}


def restored(state: Any, found: dict[str, Any]) -> Any:
    """What was `found` for the leaves of `state`, with those that have no elements."""
    leaves, tree = untyped_jax.tree.flatten(state)
    arrays = iter(untyped_jax.tree.leaves(found[_ROOT]))
    return tree.unflatten(
        [_empty(leaf) if _is_empty(leaf) else _as_given(leaf, next(arrays)) for leaf in leaves]
    )


def leaves_of(state: Any) -> dict[str, Leaf]:
    """Shape and dtype of every leaf of `state`, by its path.

    Raises:
      CheckpointError: one is no array and no number.
    """
    found: dict[str, Leaf] = {}
    for path, leaf in untyped_jax.tree_util.tree_leaves_with_path(state):
        name = untyped_jax.tree_util.keystr(path)
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


def _written(leaf: Any) -> Any:
    if _is_empty(leaf):
        return None
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)


def _read(leaf: Any) -> Any:
    if _is_empty(leaf):
        return None
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
