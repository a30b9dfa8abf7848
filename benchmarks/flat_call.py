"""A call of a traced function as the flat arrays that its program takes and gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from autopar.trace import Traced


def flatten(traced: Traced, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The flat arrays that a program takes for a call, typed keys as their data."""
    dynamic = tuple(arg for i, arg in enumerate(args) if i not in traced.static_argnums)
    leaves, tree = jax.tree_util.tree_flatten((dynamic, kwargs))
    assert tree == traced.in_tree
    for position, _ in traced.key_inputs:
        leaves[position] = jax.random.key_data(leaves[position])
    return leaves


def unflatten(traced: Traced, outputs: Sequence[Any]) -> Any:
    """What a program gives, in the function's own structure, key data as typed keys."""
    leaves = list(outputs)
    for position, implementation in traced.key_outputs:
        leaves[position] = jax.random.wrap_key_data(leaves[position], impl=implementation)
    return jax.tree_util.tree_unflatten(traced.out_tree, leaves)
