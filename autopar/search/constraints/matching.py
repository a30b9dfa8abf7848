"""Matching: which variables of a space a constraint's target names, and how each of their candidates lies."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property

from autopar.core.graph import OpGraph, OpNode
from autopar.core.placement import Placement
from autopar.core.space import Space, carried_out
from autopar.core.strategy import Strategy
from autopar.search.constraints.records import (
    At,
    Constraint,
    Follow,
    Forbid,
    Named,
    Pin,
    Replicate,
    Target,
    Tie,
)

_SHOWN = 5


@dataclass(frozen=True, eq=False)
class Spot:
    """A tensor at a variable: for each candidate of that variable its placement, and the axes that are in use.

    `captured` is the text that stood for the `*` of the target.
    """

    variable: int
    name: str
    shape: tuple[int, ...]
    placements: tuple[Placement, ...]
    axes: tuple[frozenset[str], ...]
    captured: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Matcher:
    """Finds the spots of targets in one space.

    A source is found by all of it ("model.py:41 (loss)"), its line ("model.py:41") or its file ("model.py").
    """

    graph: OpGraph
    space: Space

    def spots(self, target: Target) -> tuple[Spot, ...]:
        """The spots that `target` names, in order of inputs, operators, outputs; none if there is nothing like it."""
        match target:
            case Named(pattern):
                return self._named(pattern)
            case At():
                return tuple(self._at(target))
            case _:
                data = set(self.graph.batch_inputs)
                wanted = [
                    n
                    for n in range(len(self.graph.inputs))
                    if (n in data) == (target.role == "data")
                ]
                return tuple(self._input(n) for n in wanted)

    def hint(self, target: Target) -> str:
        """What there is that is called similarly."""
        if isinstance(target, At):
            kinds = sorted({op.kind for op in self.graph.ops})
            wanted = target.source or target.kind
            known = [*kinds, *dict.fromkeys(map(_line, self.graph.ops))]
        else:
            wanted = target.pattern if isinstance(target, Named) else ""
            known = list(self._names)

        containing = [name for name in known if wanted and wanted in name]
        close = list(
            dict.fromkeys([*get_close_matches(wanted, known, n=_SHOWN, cutoff=0.5), *containing])
        )[:_SHOWN]
        return (
            f"Close to it: {', '.join(close)}."
            if close
            else f"There are, for example: {', '.join(known[:_SHOWN])}."
        )

    @cached_property
    def _names(self) -> dict[str, list[Callable[[], Spot]]]:
        """What makes the spots of every name."""
        found: dict[str, list[Callable[[], Spot]]] = {}
        for n, tensor in enumerate(self.graph.inputs):
            found.setdefault(tensor.name, []).append(lambda n=n: self._input(n))
        for op in self.graph.ops:
            if op.kind == "name":
                found.setdefault(str(op.params["name"]), []).append(
                    lambda op=op: self._operator(op, "result", 0)
                )
        for n in self.space.output_variables:
            found.setdefault(self.graph.output_name(n), []).append(lambda n=n: self._output(n))
        return found

    def _named(self, pattern: str) -> tuple[Spot, ...]:
        return tuple(
            _with(make(), captured)
            for name, captured in matches(pattern, self._names)
            for make in self._names[name]
        )

    def _at(self, target: At) -> Iterator[Spot]:
        for op in matching_operators(target, self.graph):
            yield self._operator(op, target.side, target.position)

    def _input(self, position: int) -> Spot:
        tensor = self.graph.inputs[position]
        candidates = self.space.inputs[position]
        return self._of(position, tensor.name or f"input {position}", tensor.shape, candidates)

    def _output(self, position: int) -> Spot:
        variable = self.space.output_variables[position]
        candidates = self.space.outputs[position] or self.space.inputs[variable]
        return self._of(
            variable,
            self.graph.output_name(position),
            self.graph.outputs[position].shape,
            candidates,
        )

    def _of(
        self, variable: int, name: str, shape: tuple[int, ...], candidates: tuple[Placement, ...]
    ) -> Spot:
        return Spot(variable, name, shape, candidates, tuple(p.varying_axes for p in candidates))

    def _operator(self, op: OpNode, side: str, position: int) -> Spot:
        entering = dict(self.space.loop_carries).get(op.id)
        own = self.space.strategies[op.id if entering is None else entering]
        strategies = own if entering is None else tuple(map(carried_out, own))
        tensor = (op.outs if side == "result" else op.ins)[position]
        placed = tuple((s.outs if side == "result" else s.ins)[position] for s in strategies)
        name = f"{side} {position} of {op.kind} ({op.source})"
        variable = self.space.operator_variables[op.id]
        return Spot(variable, name, tensor.shape, placed, tuple(map(_used, strategies)))


def matches(pattern: str, names: Collection[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Those of `names` that the pattern of a Named is about, each with the text that stood for its `*`."""
    if pattern in names:
        return ((pattern, ()),)
    below = [name for name in names if name.startswith((f"{pattern}[", f"{pattern}."))]
    if below and "*" not in pattern:
        return tuple((name, ()) for name in below)
    glob = _glob(pattern)
    return tuple((name, matched.groups()) for name in names if (matched := glob.fullmatch(name)))


def is_about(constraint: Constraint, name: str) -> bool:
    """Whether a constraint names an input or output called so."""
    match constraint:
        case Pin(target=Named(pattern)) | Replicate(Named(pattern)) | Forbid(Named(pattern)):
            return bool(matches(pattern, (name,)))
        case Tie(targets):
            return any(isinstance(t, Named) and matches(t.pattern, (name,)) for t in targets)
        case Follow(pins=pins):
            return any(is_about(pin, name) for pin in pins)
        case _:
            return False


def matching_operators(target: At, graph: OpGraph) -> Iterator[OpNode]:
    """The operators of `graph` that a target names, in order."""
    kind, scope, source = (
        _glob(text or "*") for text in (target.kind, target.scope, target.source)
    )

    for op in graph.ops:
        tensors = op.outs if target.side == "result" else op.ins
        if (
            not kind.fullmatch(op.kind)
            or not scope.fullmatch(op.scope)
            or len(tensors) <= target.position
        ):
            continue
        if any(
            source.fullmatch(text) for text in (op.source, _line(op), _line(op).rpartition(":")[0])
        ):
            yield op


def all_names(graph: OpGraph) -> dict[str, None]:
    """The names of inputs, named values and outputs, in order."""
    named = [str(op.params["name"]) for op in graph.ops if op.kind == "name"]
    outputs = [graph.output_name(n) for n in range(len(graph.outputs))]
    return dict.fromkeys([*(tensor.name for tensor in graph.inputs), *named, *outputs])


def _glob(pattern: str) -> re.Pattern[str]:
    """A pattern whose `*` are any characters, each a group; all else, brackets too, is itself."""
    return re.compile("(.*)".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _with(spot: Spot, captured: tuple[str, ...]) -> Spot:
    return Spot(spot.variable, spot.name, spot.shape, spot.placements, spot.axes, captured)


def _used(strategy: Strategy) -> frozenset[str]:
    """The axes that an operator uses under a strategy."""
    placed = (*strategy.ins, *strategy.outs)
    given = {axis for _, axes in strategy.factors for axis in axes}
    given |= {axis for exchange in strategy.exchanges for axis in exchange.axes}
    return frozenset(given).union(*(placement.varying_axes for placement in placed))


def _line(op: OpNode) -> str:
    return op.source.partition(" (")[0]
