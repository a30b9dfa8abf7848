"""Names: how what is in the arguments of a call is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autopar._compat import untyped_jax
from autopar.api.adapters.protocol import Args, Kwargs
from autopar.trace.arguments import positional_names

IsLeaf = Callable[[Any], bool]


def named_leaves(fn: Any, args: Args, kwargs: Kwargs, is_leaf: IsLeaf) -> list[tuple[str, Any]]:
    """The leaves of the arguments of `fn` with their names, in the order of `jax.tree.leaves((args, kwargs))`."""
    positional = positional_names(fn, len(args))
    keyed, _ = untyped_jax.tree_util.tree_flatten_with_path((args, kwargs), is_leaf=is_leaf)
    return [(_name(path, positional), leaf) for path, leaf in keyed]


def _name(path: Any, positional: list[str]) -> str:
    side, which = path[0].idx, path[1]
    inside = untyped_jax.tree_util.keystr(path[2:])
    return f"{which.key}{inside}" if side else f"{positional[which.idx]}{inside}"
