"""The one enumerator: from an operator's rule and a mesh, every strategy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Dims, Kind, Placement
from autopar.core.strategy import Exchange, Strategy
from autopar.rules.factor_rule import Factor, FactorRule, TensorFactors, Traffic

Axes = tuple[str, ...]
Assignment = dict[Factor, Axes]


def enumerate_strategies(rule: FactorRule, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    """Every strategy of the operator on `mesh`, the replicated one first, in a fixed order.

    A mesh axis goes to at most one factor; several axes on one factor stand in mesh order. What does not divide
    evenly, splits a minor factor of a compound dim before the major one is whole to the device, needs elements from
    beyond its neighbours, or would leave a tensor unreduced in two ways at once does not exist. Strategies with equal
    placements are listed once. Equal rules, of whatever operators, have the same tuple, unless they exchange.
    """
    return _enumerate(rule, mesh) if rule.exchanged else _of_equal_rules(_ByContent(rule), mesh)


@dataclass(frozen=True, eq=False)
class _ByContent:
    """A rule without exchanges, equal to another that says the same: most operators of one shape share theirs."""

    rule: FactorRule

    @cached_property
    def content(self) -> tuple[object, ...]:
        rule = self.rule
        sizes, reduced, carried = (tuple(side.items()) for side in (rule.sizes, rule.reduced, rule.carried))
        return (rule.ins, rule.outs, sizes, reduced, carried, rule.frozen, rule.everywhere)

    def __hash__(self) -> int:
        return hash(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByContent) and self.content == other.content


@lru_cache(maxsize=4096)
def _of_equal_rules(rule: _ByContent, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    return _enumerate(rule.rule, mesh)


def _enumerate(rule: FactorRule, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    """One strategy for each assignment that gives every tensor a placement, the first of those that give the same."""
    tensors = _tensors(rule, mesh)
    operands = len(rule.ins)
    found: dict[tuple[int, ...], Strategy] = {}
    for given in _assignments(rule, mesh):
        placed: list[Placement] = []
        for tensor in tensors:
            placement = tensor.placement(given)
            if placement is None:
                break
            placed.append(placement)
        else:
            key = tuple(map(id, placed))  # equal placements of one enumeration are one object
            if key in found:
                continue
            exchanges = _exchanges(rule, mesh, given, tuple(placed)) if rule.exchanged else ()
            if exchanges is None:
                continue
            split = mesh.product(axis for factor, axes in given.items() if rule.sizes[factor] for axis in axes)
            ins, outs = tuple(placed[:operands]), tuple(placed[operands:])
            found[key] = Strategy(ins, outs, tuple(given.items()), split, exchanges)
    return tuple(found.values())


def _assignments(rule: FactorRule, mesh: DeviceMesh) -> list[Assignment]:
    """Every way to give each axis to a factor or to none, the last axis changing fastest, that divides evenly."""
    options = (None, *rule.factors) if rule.everywhere is None else (rule.everywhere,)
    found: list[Assignment] = [{}]
    for axis, size in mesh.axes:
        if size > 1:
            found = [after for given in found for after in _given(rule, mesh, given, axis, options)]
    return found


def _given(
    rule: FactorRule, mesh: DeviceMesh, given: Assignment, axis: str, options: tuple[Factor | None, ...]
) -> Iterator[Assignment]:
    for factor in options:
        if factor is None:
            yield given
            continue
        axes = (*given.get(factor, ()), axis)
        if rule.sizes[factor] % mesh.product(axes) == 0:
            yield {**given, factor: axes}


@dataclass(frozen=True, eq=False)
class _Tensor:
    """One operand or result of a rule: its placement under an assignment, worked out once for each that it can see.

    `open` are the factors over whose axes it is unreduced; `seen` these and those of its dims.
    """

    rule: FactorRule
    mesh: DeviceMesh
    dims: TensorFactors
    open: tuple[Factor, ...]
    placements: dict[Placement, Placement]
    known: dict[tuple[Axes, ...], Placement | None] = field(default_factory=dict[tuple[Axes, ...], Placement | None])

    @cached_property
    def is_plain(self) -> bool:
        """Whether every dim is one factor: its dims are split as the first factors that it sees."""
        return all(len(factors) == 1 for factors in self.dims)

    @cached_property
    def seen(self) -> tuple[Factor, ...]:
        return tuple(dict.fromkeys((*(f for factors in self.dims for f in factors), *self.open)))

    def placement(self, given: Assignment) -> Placement | None:
        """The placement; the same object for equal ones. None where there is none."""
        key = tuple([given.get(factor, ()) for factor in self.seen])
        try:
            return self.known[key]
        except KeyError:
            placement = self._first(key, given)
            self.known[key] = None if placement is None else self.placements.setdefault(placement, placement)
            return self.known[key]

    def _first(self, key: tuple[Axes, ...], given: Assignment) -> Placement | None:
        split = key[: len(self.dims)] if self.is_plain else _split(self.rule, self.mesh, self.dims, given)
        if split is None:
            return None
        unreduced = [factor for factor in self.open if factor in given]
        if not unreduced:
            return _placed(split, (), "sum")
        kinds = {self.rule.reduced[factor] for factor in unreduced}
        axes = sorted(axis for factor in unreduced for axis in given[factor])
        return _placed(split, tuple(axes), kinds.pop()) if len(kinds) == 1 else None


def _tensors(rule: FactorRule, mesh: DeviceMesh) -> list[_Tensor]:
    """The operands and results in order; those that see the same are one object."""
    placements: dict[Placement, Placement] = {}
    known: dict[tuple[TensorFactors, tuple[Factor, ...]], _Tensor] = {}

    def tensor(dims: TensorFactors, unreduced: tuple[Factor, ...]) -> _Tensor:
        return known.setdefault((dims, unreduced), _Tensor(rule, mesh, dims, unreduced, placements))

    found: list[_Tensor] = []
    for operand, dims in enumerate(rule.ins):
        found.append(tensor(dims, tuple(f for f, operands in rule.carried.items() if operand in operands)))
    for dims in rule.outs:
        held = {f for factors in dims for f in factors}
        found.append(tensor(dims, tuple(f for f in rule.reduced if f not in held)))
    return found


def _exchanges(
    rule: FactorRule, mesh: DeviceMesh, given: Assignment, placed: tuple[Placement, ...]
) -> tuple[Exchange, ...] | None:
    """What the operator sends inside, in the order of the rule; None where a split factor cannot be.

    A dim that was lengthened by one exchange is so in the next.
    """
    found: list[Exchange] = []
    extents: dict[int, list[int]] = {}
    for factor, traffic_of in rule.exchanged.items():
        axes = given.get(factor, ())
        if not axes:
            continue
        sent = traffic_of(mesh.product(axes))
        if sent is None:
            return None
        for traffic in sent:
            if traffic.tensor not in extents:
                extents[traffic.tensor] = list(_local_shape(rule, mesh, placed, traffic.tensor))
            extent = extents[traffic.tensor]
            if traffic.elements:
                size = _elements(traffic, extent) * rule.itemsizes[traffic.tensor]
                found.append(Exchange(traffic.kind, axes, size, traffic.tensor, traffic.hop))
            if traffic.extent is not None and traffic.dim is not None:
                extent[traffic.dim] = traffic.extent
    return tuple(found)


def _local_shape(rule: FactorRule, mesh: DeviceMesh, placed: tuple[Placement, ...], tensor: int) -> tuple[int, ...]:
    dims = (*rule.ins, *rule.outs)[tensor]
    return placed[tensor].local_shape([prod(rule.sizes[f] for f in factors) for factors in dims], mesh)


def _elements(traffic: Traffic, extent: list[int]) -> int:
    """The elements of one message."""
    return traffic.elements * prod(size for d, size in enumerate(extent) if d != traffic.dim)


def _split(rule: FactorRule, mesh: DeviceMesh, dims: TensorFactors, given: Assignment) -> Dims | None:
    """The axes that split each dim; None if a shard of a compound dim would not be one run."""
    split: list[Axes] = []
    for factors in dims:
        if len(factors) != 1 and not _contiguous(rule, mesh, factors, given):
            return None
        split.append(tuple(axis for factor in factors for axis in given.get(factor, ())))
    return tuple(split)


@lru_cache(maxsize=65536)
def _placed(dims: Dims, unreduced: tuple[str, ...], kind: Kind) -> Placement:
    """The placement; one for equal ones, since operators share most of theirs."""
    return Placement(dims, unreduced, kind)


def _contiguous(rule: FactorRule, mesh: DeviceMesh, factors: tuple[Factor, ...], given: Assignment) -> bool:
    """Whether a shard of the compound dim is one run: a factor may be split only if those before it are used up."""
    whole = True
    for factor in factors:
        parts = mesh.product(given.get(factor, ()))
        if parts > 1 and not whole:
            return False
        whole = whole and parts == rule.sizes[factor]
    return True
