"""Sink: what is made whole and read in slices only is made slice by slice, as masks of dropout are."""

from __future__ import annotations

from collections.abc import Callable

from autopar.core.graph import OpGraph, OpNode
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy

Wanted = dict[int, set[Placement]]


def sunk(
    graph: OpGraph,
    strategies: tuple[Strategy, ...],
    movable: Callable[[OpNode], bool],
    options: Callable[[OpNode], tuple[Strategy, ...]],
) -> tuple[Strategy, ...]:
    """`strategies` with split ones for operators whose results all readers want in the same slices.

    Args:
      graph: the step.
      strategies: one for every operator.
      movable: whether an operator that runs whole may run on slices.
      options: the strategies of an operator.
    """
    found = list(strategies)
    wanted: Wanted = {}
    for tensor in graph.outputs:
        wanted.setdefault(tensor.id, set()).add(Placement.replicated(tensor.ndim))

    for op in reversed(graph.ops):
        chosen = found[op.id]
        is_whole = not any(p.varying_axes for p in (*chosen.ins, *chosen.outs))
        if is_whole and movable(op):
            found[op.id] = chosen = _split(op, options, wanted) or chosen
        for tensor, placement in zip(op.ins, chosen.ins, strict=True):
            wanted.setdefault(tensor.id, set()).add(placement)

    return tuple(found)


def _split(
    op: OpNode, options: Callable[[OpNode], tuple[Strategy, ...]], wanted: Wanted
) -> Strategy | None:
    """The first strategy by which `op` makes what is wanted of it; None if it is to be whole, or cannot be split."""
    readers = [wanted.get(tensor.id, set()) for tensor in op.outs]
    split = [len(each) == 1 and any(p.split_axes for p in each) for each in readers]
    if not any(split) or not all(
        is_split or not each for is_split, each in zip(split, readers, strict=True)
    ):
        return None

    for strategy in options(op):
        fits = all(
            not each or placement in each
            for placement, each in zip(strategy.outs, readers, strict=True)
        )
        unreduced = any(p.unreduced for p in (*strategy.ins, *strategy.outs))
        if fits and not unreduced:
            return strategy
    return None
