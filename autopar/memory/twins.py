"""Lasting: what of the dataflow is there whatever is recomputed, in the graph that holds every twin."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from autopar.core.dataflow import Copy, Dataflow, Use, until
from autopar.core.graph import OpGraph
from autopar.core.memo import once_per_graph


@once_per_graph
def clipped(graph: OpGraph, flow: Dataflow) -> Dataflow:
    """`flow` with stored copies that end at their last reader that is always there; twins hold them longer."""

    def clip(copy: Copy) -> Copy:
        lasting = [use for use in copy.uses if not is_twin(graph, use)]
        if not copy.stored or not copy.uses:
            return copy
        if not lasting and is_join(graph, copy):
            return copy
        stop = max((until(graph, copy.region, use) for use in lasting), default=copy.start) + 1
        return replace(copy, stop=stop)

    return Dataflow(tuple(map(clip, flow.copies)), flow.source, flow.uses)


def is_twin(graph: OpGraph, use: Use) -> bool:
    """Whether a twin reads."""
    return use.op is not None and graph.ops[use.op].recomputes is not None


def is_join(graph: OpGraph, copy: Copy) -> bool:
    """Whether it is the stored copy of what a twin makes."""
    producer = graph.producers.get(copy.tensor.id)
    return copy.stored and producer is not None and producer.recomputes is not None


@once_per_graph
def lasting(
    graph: OpGraph, flow: Dataflow, may_go: frozenset[int], joined: frozenset[int]
) -> Dataflow:
    """The uses of `flow` that are always there, or come with what they read, and the copies that they share.

    Of stored copies those whose tensor is always made and always read by the same; of the others those that are made
    for a use that is there. What reads one of the rest is left out too.

    Args:
      graph: the graph with every twin.
      flow: all its copies and uses.
      may_go: the operators that some choices leave out.
      joined: the ids of tensors that late readers find in a join, if they are kept.
    """
    uses = {tensor: _sure(graph, tensor, mine, may_go) for tensor, mine in flow.uses.items()}
    copies: list[Copy] = []
    for copy in flow.copies:
        mine = tuple(use for use in copy.uses if use in uses[copy.tensor.id])
        producer = graph.producers.get(copy.tensor.id)
        if not copy.stored and mine[:1] == copy.uses[:1]:
            copies.append(replace(copy, uses=mine))
        elif not copy.stored:
            uses[copy.tensor.id] = tuple(
                use for use in uses[copy.tensor.id] if flow.source[use] != copy.id
            )
        elif (
            mine == copy.uses
            and producer
            and producer.id not in may_go
            and copy.tensor.id not in joined
        ):
            copies.append(copy)

    return Dataflow(tuple(copies), flow.source, uses)


def _sure(
    graph: OpGraph, tensor: int, uses: tuple[Use, ...], may_go: Collection[int]
) -> tuple[Use, ...]:
    """The uses of a tensor that are always there; if it is computed anew for one other only, that."""
    producer = graph.producers.get(tensor)
    if len(uses) == 1 and producer is not None and producer.recomputes is not None:
        return uses
    return tuple(use for use in uses if use.op not in may_go)


def read_once(flow: Dataflow, joins: Mapping[int, int]) -> dict[int, int]:
    """When what is kept is read late, for tensors whose join (its copy in `flow`, by tensor) has one reader only.

    That one counts what it reads itself, as there is no copy that several share.
    """
    uses = {tensor: flow.copies[join].uses for tensor, join in joins.items()}
    return {tensor: mine[0].time for tensor, mine in uses.items() if len(mine) == 1}
