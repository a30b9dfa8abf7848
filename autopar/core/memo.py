"""Memo: what is worked out once for each graph, and forgotten with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from autopar.core.graph import OpGraph

P = ParamSpec("P")
T = TypeVar("T")


def once_per_graph(
    function: Callable[Concatenate[OpGraph, P], T],
) -> Callable[Concatenate[OpGraph, P], T]:
    """`function` of a graph, called once for each graph object and what else it is given, all of it hashable.

    What it returns must not be changed.
    """
    known: WeakKeyDictionary[OpGraph, dict[object, T]] = WeakKeyDictionary()

    @wraps(function)
    def remembered(graph: OpGraph, *args: P.args, **kwargs: P.kwargs) -> T:
        mine = known.setdefault(graph, {})
        key = args, tuple(kwargs.items())
        if key not in mine:
            mine[key] = function(graph, *args, **kwargs)
        return mine[key]

    return remembered
