"""Names: a pytree of parameters as arrays by name, `layers/0/kernel`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autopar._compat import untyped_jax

WHOLE = "params"
"""What the only array is called of a tree that is an array itself."""


def names_in(tree: Any) -> Any:
    """The tree with the name of each leaf in its place."""

    def name(path: Any, _: Any) -> str:
        return name_of(path)

    return untyped_jax.tree_util.tree_map_with_path(name, tree)


def by_name(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by name, in its order."""
    leaves: list[tuple[Any, Any]] = untyped_jax.tree_util.tree_leaves_with_path(tree)
    return {name_of(path): leaf for path, leaf in leaves}


def shapes_by_name(tree: Any) -> dict[str, Any]:
    """Shape and type of each leaf by name, as JAX has them."""

    def same(whole: Any) -> Any:
        return whole

    return by_name(untyped_jax.eval_shape(same, tree))


def filled(names: Any, leaves: Mapping[str, Any]) -> Any:
    """The tree of names, with the leaf of each name in its place."""
    return untyped_jax.tree_util.tree_map(leaves.__getitem__, names)


def name_of(path: Any) -> str:
    """`layers/0/kernel` for the path of a leaf."""
    return untyped_jax.tree_util.keystr(path, simple=True, separator="/") or WHOLE
