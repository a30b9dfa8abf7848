"""Trees: the structure of arguments and results as Python text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from autopar._compat import untyped_jax
from autopar.emit.source.layout import Group, Named, Text, flat, sequence
from autopar.emit.source.values import value_text
from autopar.errors import SourceError


def result_text(tree: Any, leaves: Iterator[str], given: Sequence[tuple[str, Any]]) -> Text:
    """The expression that builds `tree` of `leaves`.

    Tuples, lists and dicts are written; another node is made as one of those `given`, (expression, structure), is.

    Raises:
      SourceError: a node is of another type, and no argument has one like it.
    """
    node = tree.node_data()
    if node is None:
        return next(leaves)
    kind, metadata = node
    children = tree.children()
    if kind is type(None):
        return "None"
    if kind in (tuple, list):
        items = [result_text(child, leaves, given) for child in children]
        return sequence(items, "()" if kind is tuple else "[]")
    if kind is dict:
        pairs = zip(metadata, children, strict=True)
        named = [Named(flat(value_text(k)), result_text(c, leaves, given), ": ") for k, c in pairs]
        return Group("", tuple(named), "{}")

    like = next((expression for expression, known in given if known == tree), None)
    if like is None:
        raise SourceError(
            f"a result holds a {kind.__module__}.{kind.__qualname__}, which is none of JAX's containers and like no "
            f"argument: return its arrays in a dict, a list or a tuple"
        )
    values = sequence([next(leaves) for _ in range(tree.num_leaves)], "[]")
    return Group("jax.tree.unflatten", (f"jax.tree.structure({like})", values))


def parts(expression: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """(expression, structure) of `tree`, an argument called `expression`, and of all that lies in its containers."""
    yield expression, tree
    node = tree.node_data()
    if node is None or node[0] not in (tuple, list, dict):
        return
    kind, metadata = node
    keys = metadata if kind is dict else range(len(tree.children()))
    for key, child in zip(keys, tree.children(), strict=True):
        yield from parts(f"{expression}[{flat(value_text(key))}]", child)


def structure(value: Any) -> Any:
    """The structure of `value`."""
    return untyped_jax.tree.structure(value)
