"""The space that is searched: a graph, the rules and a mesh in, every variable's candidates out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import chain, product, repeat
from typing import Literal

from autopar.core.dataflow import Dataflow
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.manual import manual_axes
from autopar.core.mesh import DeviceMesh
from autopar.core.pins import PINNED, Spec
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.space import Space, carried_out
from autopar.core.strategy import Strategy
from autopar.errors import PlanFileError
from autopar.ops.recurrences import recurring
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.search.pinned import filled, pinned_strategies, strategies_by_hand
from autopar.search.resolve import FindRule, no_rule, resolve

Sides = dict[tuple[int, int], tuple[Placement, ...]]
Keep = Callable[[OpNode, tuple[Strategy, ...]], tuple[Strategy, ...]]


def build_space(
    graph: OpGraph,
    flow: Dataflow,
    mesh: DeviceMesh,
    *,
    keep: Keep,
    strict: bool = False,
    find: FindRule = no_rule,
    stated: tuple[Spec, ...] = (),
) -> Space:
    """The candidates of every variable.

    Args:
      graph: the traced function.
      flow: its copies.
      mesh: the devices.
      keep: the pricing's filter of an operator's strategies.
      strict: refuse an operator without a rule instead of replicating it.
      find: what finds a rule where none is written.
      stated: layouts that are candidates of inputs and outputs, though axes of a dim stand in another order than in the
        mesh.

    Raises:
      UnsupportedPrimitive: an operator has no rule and `strict`.
      NoFeasiblePlan: a sharding of the function's own does not divide its tensor evenly.
    """
    strategies = _strategies(graph, mesh, keep, strict, find)
    loop_carries = tuple(graph.loop_carries.items())
    carry = tuple((out, source) for out, source in graph.carry)
    carried = {out for out, _ in carry}
    key_inputs = frozenset(graph.key_inputs)
    key_outputs = frozenset(graph.key_outputs)
    inputs = tuple(
        _free(t.shape, mesh, i in key_inputs, stated) for i, t in enumerate(graph.inputs)
    )
    outputs = tuple(
        ()
        if i in carried or t.literal is not None
        else _free(t.shape, mesh, i in key_outputs, stated)
        for i, t in enumerate(graph.outputs)
    )
    copies = _copies(graph, flow, inputs, strategies, outputs, dict(carry))

    return Space(mesh, inputs, strategies, copies, outputs, carry, loop_carries)


def check_strategies(graph: OpGraph, stage: Stage, find: FindRule = no_rule) -> None:
    """Whether every operator of `graph` has one of its own strategies in `stage`, which came from a file.

    Raises:
      PlanFileError: naming the first operator that has not.
    """
    if len(stage.strategies) != len(graph.ops):
        raise PlanFileError(
            f"the plan has {len(stage.strategies)} operators, the function {len(graph.ops)}. Plan it again."
        )

    known: dict[int, frozenset[Strategy]] = {}
    options = _strategies(
        graph, stage.mesh, lambda _, strategies: strategies, strict=False, find=find
    )
    for op, mine, strategy in zip(graph.ops, options, stage.strategies, strict=True):
        entering = graph.loop_carries.get(op.id)
        if entering is not None:
            is_own = strategy == carried_out(stage.strategies[entering])
        else:
            is_own = strategy in known.setdefault(id(mine), frozenset(mine))
        if not is_own:
            ins, outs = (", ".join(map(str, side)) for side in (strategy.ins, strategy.outs))
            raise PlanFileError(
                f"the plan runs {op.kind!r} ({op.source}) as {ins} -> {outs}, which is no strategy of it: the file is "
                f"damaged, or a rule has changed since. Plan again."
            )


def all_placements(shape: tuple[int, ...], mesh: DeviceMesh) -> tuple[Placement, ...]:
    """Every placement of a tensor without unreduced axes, the replicated one first.

    Axes on one dim stand in mesh order; what does not divide evenly is left out. A tensor without elements is whole: it
    takes no bytes, and JAX (0.10.2) gives the results of a jitted function without elements shards of the whole shape.
    """
    if 0 in shape:
        return (Placement.replicated(len(shape)),)

    axes = [name for name, size in mesh.axes if size > 1]
    found: list[Placement] = []
    for dims in product(range(-1, len(shape)), repeat=len(axes)):
        split = tuple(
            tuple(a for a, d in zip(axes, dims, strict=True) if d == dim)
            for dim in range(len(shape))
        )
        placement = Placement(split)
        if placement.fits(shape, mesh):
            found.append(placement)

    return tuple(found)


@lru_cache(maxsize=4096)
def _free(
    shape: tuple[int, ...], mesh: DeviceMesh, is_key: bool, stated: tuple[Spec, ...]
) -> tuple[Placement, ...]:
    """The placements that an input or output may have; one tuple for all of one shape, so that they share prices."""
    found = all_placements(shape, mesh)
    for spec in stated:
        if len(spec) <= len(shape):
            whole = (*spec, *((),) * (len(shape) - len(spec)))
            found += tuple(
                p
                for p in map(filled, found, repeat(whole))
                if p is not None and p.fits(shape, mesh)
            )
    return tuple(p for p in dict.fromkeys(found) if not (is_key and p.dims[-1]))


def _strategies(
    graph: OpGraph, mesh: DeviceMesh, keep: Keep, strict: bool, find: FindRule
) -> tuple[tuple[Strategy, ...], ...]:
    known: dict[tuple[int, bool], tuple[Strategy, ...]] = {}
    found: list[tuple[Strategy, ...]] = []
    whole = recurring(graph)

    for op, first in zip(graph.ops, graph.alike, strict=True):
        if op.id in graph.loop_carries:
            found.append(())
            continue
        key = first, op.id in whole
        if key not in known:
            every = _of(op, mesh, strict, find)
            if op.id in whole:
                every = tuple(strategy for strategy in every if not strategy.outs[0].unreduced)
            known[key] = keep(op, every)
        found.append(known[key])
    return tuple(found)


def _of(op: OpNode, mesh: DeviceMesh, strict: bool, find: FindRule) -> tuple[Strategy, ...]:
    free = enumerate_strategies(resolve(op, find, strict=strict), mesh)
    free = strategies_by_hand(op, mesh, free) if manual_axes(op) else free
    free = (
        tuple(strategy for strategy in free if not strategy.exchanges)
        if any(t.fixed for t in op.outs)
        else free
    )
    return pinned_strategies(op, mesh, free) if op.kind in PINNED else free


def _copies(
    graph: OpGraph,
    flow: Dataflow,
    inputs: tuple[tuple[Placement, ...], ...],
    strategies: tuple[tuple[Strategy, ...], ...],
    outputs: tuple[tuple[Placement, ...], ...],
    carry: Mapping[int, int],
) -> tuple[tuple[Placement, ...], ...]:
    """A copy's candidates: every placement in which its tensor is made or wanted.

    Operators with one signature share their strategies: what follows from these is worked out once for all of them.
    """
    sides: tuple[Sides, Sides] = {}, {}

    def side(op: int, which: Literal[0, 1], position: int) -> tuple[Placement, ...]:
        if op in graph.loop_carries:  # what a loop carries lies where it goes in
            return side(graph.loop_carries[op], 1, 0)
        key = id(strategies[op]), position
        found = sides[which].get(key)
        if found is None:
            found = sides[which][key] = _distinct(
                [(s.outs if which else s.ins)[position] for s in strategies[op]]
            )
        return found

    given = {tensor.id: placements for tensor, placements in zip(graph.inputs, inputs, strict=True)}

    def made(tensor: TensorInfo) -> tuple[Placement, ...]:
        producer = graph.producers.get(tensor.id)
        return (
            given[tensor.id]
            if producer is None
            else side(producer.id, 1, producer.outs.index(tensor))
        )

    known: dict[tuple[int, ...], tuple[Placement, ...]] = {}
    shared: dict[tuple[Placement, ...], tuple[Placement, ...]] = {}
    found: list[tuple[Placement, ...]] = []
    for copy in flow.copies:
        wanted = [made(copy.tensor)]
        for use in copy.uses:
            if use.op is not None:
                wanted.append(side(use.op, 0, use.position))
            else:
                wanted.append(outputs[use.position] or inputs[carry[use.position]])
        key = tuple(map(id, wanted))
        if key not in known:
            candidates = _distinct(chain.from_iterable(wanted))
            known[key] = shared.setdefault(candidates, candidates)
        found.append(known[key])

    return tuple(found)


def _distinct(placements: Iterable[Placement]) -> tuple[Placement, ...]:
    every = tuple(placements)
    # most equal ones are one object
    return tuple(dict.fromkeys(dict(zip(map(id, every), every, strict=True)).values()))
