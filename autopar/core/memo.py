"""Memo: what is worked out once for each graph, and forgotten with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from autopar.core.graph import OpGraph

T = TypeVar("T")


def once_per_graph(function: Callable[[OpGraph], T]) -> Callable[[OpGraph], T]:
    """`function` of a graph, called once for each graph object; what it returns must not be changed."""
    known: WeakKeyDictionary[OpGraph, T] = WeakKeyDictionary()

    @wraps(function)
    def remembered(graph: OpGraph) -> T:
        if graph not in known:
            known[graph] = function(graph)
        return known[graph]

    return remembered
