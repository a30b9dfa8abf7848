"""Returned: what a function gives back that changes its arguments, as a pytree.

Objects of libraries stand among arguments as `Leaves`: their arrays with the names that they have there. A function
that may change them returns `Returned`: its own result, and the arrays that it put into them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autopar._compat import untyped_jax


@dataclass(frozen=True)
class Text:
    """A key of a path, which shows as it is."""

    text: str

    def __str__(self) -> str:
        return self.text


class Leaves:
    """The arrays of an object, named as they are reached from it (".layers[0].kernel")."""

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self.names = tuple(names)
        self.values = list(values)


class Returned:
    """A result, the arrays that take the place of those of that name in the arguments, and what is known of both.

    `known` holds no arrays; it is hashable.
    """

    def __init__(self, result: Any, changed: Leaves, known: Any) -> None:
        self.result = result
        self.changed = changed
        self.known = known


def held_leaves(structure: Any) -> list[Leaves]:
    """The Leaves in a structure, in order."""
    found = untyped_jax.tree.leaves(structure, is_leaf=_is_leaves)
    return [leaf for leaf in found if _is_leaves(leaf)]


def put_back(structure: Any, objects: Iterator[Any]) -> Any:
    """A structure with the next of `objects` for each Leaves in it."""

    def chosen(leaf: Any) -> Any:
        return next(objects) if _is_leaves(leaf) else leaf

    return untyped_jax.tree.map(chosen, structure, is_leaf=_is_leaves)


def _is_leaves(value: Any) -> bool:
    return isinstance(value, Leaves)


def _leaves_with_keys(leaves: Leaves) -> Any:
    return [
        (Text(name), value) for name, value in zip(leaves.names, leaves.values, strict=True)
    ], leaves.names


def _leaves_flat(leaves: Leaves) -> Any:
    return leaves.values, leaves.names


def _returned_with_keys(returned: Returned) -> Any:
    return ((Text(""), returned.result), (Text(""), returned.changed)), returned.known


def _returned_flat(returned: Returned) -> Any:
    return (returned.result, returned.changed), returned.known


def _returned_of(known: Any, children: tuple[Any, Any]) -> Returned:
    result, changed = children
    return Returned(result, changed, known)


untyped_jax.tree_util.register_pytree_with_keys(Leaves, _leaves_with_keys, Leaves, _leaves_flat)
untyped_jax.tree_util.register_pytree_with_keys(
    Returned, _returned_with_keys, _returned_of, _returned_flat
)


def is_returned(tree: Any) -> bool:
    """Whether a structure is that of a Returned."""
    return _is_node(tree, Returned)


def result_of(tree: Any) -> Any:
    """The structure of a function's own result, the first leaves of the structure of all that it returned."""
    return tree.children()[0] if is_returned(tree) else tree


def changed_of(tree: Any) -> tuple[str, ...]:
    """The names of the arrays that were changed, the last leaves of the structure of all that was returned."""
    return tree.children()[1].node_data()[1] if is_returned(tree) else ()


def held_in_objects(tree: Any) -> tuple[int, ...]:
    """The positions of the leaves of a structure that are those of objects of libraries."""
    if _is_node(tree, Leaves):
        return tuple(range(tree.num_leaves))
    found: list[int] = []
    start = 0
    for child in tree.children():
        found += [start + n for n in held_in_objects(child)]
        start += child.num_leaves
    return tuple(found)


def _is_node(tree: Any, kind: type) -> bool:
    data = tree.node_data()
    return data is not None and data[0] is kind
