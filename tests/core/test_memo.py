"""What is remembered of a graph is worked out once, for that graph only, and goes with it."""

from __future__ import annotations

import gc
import weakref

from autopar.core.graph import OpGraph
from autopar.core.memo import once_per_graph


def test_once_for_each_graph() -> None:
    asked: list[int] = []

    @once_per_graph
    def number(graph: OpGraph) -> int:
        asked.append(id(graph))
        return len(asked)

    first, second = OpGraph((), (), ()), OpGraph((), (), ())
    assert [number(first), number(second), number(first), number(second)] == [1, 2, 1, 2]
    assert asked == [id(first), id(second)]


def test_a_graph_is_not_kept_alive() -> None:
    graph = OpGraph((), (), ())
    once_per_graph(lambda given: len(given.ops))(graph)
    gone = weakref.ref(graph)
    del graph
    gc.collect()
    assert gone() is None
