"""The one enumerator: from an operator's rule and a mesh, every strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Dims, Kind, Placement
from autopar.core.strategy import Exchange, Strategy
from autopar.rules.factor_rule import Factor, FactorRule, TensorFactors, Traffic

Axes = tuple[str, ...]
Assignment = dict[Factor, Axes]
Ints = NDArray[np.int64]
_KINDS: tuple[Kind, ...] = ("sum", "max", "min")


def enumerate_strategies(rule: FactorRule, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    """Every strategy of the operator on `mesh`, the replicated one first, in a fixed order.

    A mesh axis goes to at most one factor; several axes on one factor stand in mesh order. What does not divide
    evenly, splits a minor factor of a compound dim before the major one is whole to the device, needs elements from
    beyond its neighbours, or would leave a tensor unreduced in two ways at once does not exist. Strategies with equal
    placements are listed once. Equal rules, of whatever operators, have the same tuple, unless they exchange.
    """
    return _enumerate(rule, mesh) if rule.exchanged else _of_equal_rules(_ByContent(rule, mesh), mesh)


@dataclass(frozen=True, eq=False)
class _ByContent:
    """A rule without exchanges, equal to another that says the same: most operators of one shape share theirs.

    Of a factor's size only what divides it matters, unless it makes a dim together with others.
    """

    rule: FactorRule
    mesh: DeviceMesh

    @cached_property
    def content(self) -> tuple[object, ...]:
        rule = self.rule
        together = {f for dims in (*rule.ins, *rule.outs) for factors in dims if len(factors) > 1 for f in factors}
        sizes = tuple([(f, size if f in together else _divided(size, self.mesh)) for f, size in rule.sizes.items()])
        reduced, carried = tuple(rule.reduced.items()), tuple(rule.carried.items())
        return (rule.ins, rule.outs, sizes, reduced, carried, rule.frozen, rule.everywhere)

    def __hash__(self) -> int:
        return hash(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByContent) and self.content == other.content


@lru_cache(maxsize=65536)
def _divided(size: int, mesh: DeviceMesh) -> tuple[bool, ...]:
    """Whether there are elements, and by which of the numbers that axes can split a dim into they divide evenly."""
    counts = sorted({prod(each) for n in range(len(mesh.sizes) + 1) for each in combinations(mesh.sizes, n)})
    return (size > 0, *(size % count == 0 for count in counts))


@lru_cache(maxsize=4096)
def _of_equal_rules(rule: _ByContent, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    return _enumerate(rule.rule, mesh)


def _enumerate(rule: FactorRule, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    """One strategy for each assignment that gives every tensor a placement, the first of those that give the same."""
    factors, rows = (*rule.sizes,), _assignments(rule, mesh)
    axes = [(name, size) for name, size in mesh.axes if size > 1]
    given = [_as_given(factors, [name for name, _ in axes], row) for row in cast(list[list[int]], rows.tolist())]
    counted = np.array([0, *(size > 0 for size in rule.sizes.values())], dtype=np.bool_)[rows]
    sizes = np.array([size for _, size in axes], dtype=np.int64)
    splits = cast(list[int], np.where(counted, sizes, 1).prod(axis=1).tolist())
    columns = [tensor.placed(rows, given) for tensor in _tensors(rule, mesh)]
    operands = len(rule.ins)
    found: dict[tuple[int, ...], Strategy] = {}
    for assignment, split, *placed in zip(given, splits, *columns, strict=True):
        if not all(placed):
            continue
        key = tuple(map(id, placed))  # of one tensor equal placements are one object
        if key in found:
            continue
        whole = cast(tuple[Placement, ...], tuple(placed))
        exchanges = _exchanges(rule, mesh, assignment, whole) if rule.exchanged else ()
        if exchanges is not None:
            found[key] = Strategy(whole[:operands], whole[operands:], tuple(assignment.items()), split, exchanges)
    return tuple(found.values())


def _assignments(rule: FactorRule, mesh: DeviceMesh) -> Ints:
    """Every way to give each axis to a factor or to none, the last axis changing fastest, that divides evenly.

    row[axis] is the number of the factor that the axis goes to, from 1 on as `rule.sizes` lists them; 0 is none. Axes
    of size 1 are left out.
    """
    number = {factor: n for n, factor in enumerate(rule.sizes, 1)}
    options = [0, *(number[f] for f in rule.factors)] if rule.everywhere is None else [number[rule.everywhere]]
    extents = np.array([0, *rule.sizes.values()], dtype=np.int64)
    rows, sizes = np.zeros((1, 0), dtype=np.int64), np.zeros(0, dtype=np.int64)
    for size in mesh.sizes:
        if size > 1:
            last = np.tile(np.array(options, dtype=np.int64), len(rows))
            rows = np.column_stack([np.repeat(rows, len(options), axis=0), last])
            sizes = np.append(sizes, size)
            parts = np.where(rows == last[:, None], sizes, 1).prod(axis=1)
            rows = rows[extents[last] % parts == 0]
    return rows


def _as_given(factors: Sequence[Factor], names: Sequence[str], row: Sequence[int]) -> Assignment:
    given: Assignment = {}
    for name, number in zip(names, row, strict=True):
        if number:
            factor = factors[number - 1]
            given[factor] = (*given.get(factor, ()), name)
    return given


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
    by_code: dict[int, Placement | None]
    known: dict[tuple[Axes, ...], Placement | None] = field(default_factory=dict[tuple[Axes, ...], Placement | None])

    @cached_property
    def is_plain(self) -> bool:
        """Whether every dim is one factor: its dims are split as the first factors that it sees."""
        return all(len(factors) == 1 for factors in self.dims)

    @cached_property
    def seen(self) -> tuple[Factor, ...]:
        return tuple(dict.fromkeys((*(f for factors in self.dims for f in factors), *self.open)))

    def placed(self, rows: Ints, given: Sequence[Assignment]) -> list[Placement | None]:
        """`placement` of every assignment. What each axis does is a digit: a dim, or to leave open by a kind."""
        if not self.is_plain:
            return [self.placement(each) for each in given]
        digit = dict.fromkeys(self.rule.sizes, 0)
        digit |= {factors[0]: 1 + dim for dim, factors in enumerate(self.dims)}
        digit |= {factor: 1 + len(self.dims) + _KINDS.index(self.rule.reduced[factor]) for factor in self.open}
        powers = (1 + len(self.dims) + len(_KINDS)) ** np.arange(rows.shape[1], dtype=np.int64)
        codes = cast(list[int], (np.array([0, *digit.values()], dtype=np.int64)[rows] @ powers).tolist())
        by_code = self.by_code
        for code, each in zip(codes, given, strict=True):
            if code not in by_code:
                by_code[code] = self.placement(each)
        return [by_code[code] for code in codes]

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


@lru_cache(maxsize=256)
def _by_code(mesh: DeviceMesh, rank: int) -> dict[int, Placement | None]:
    """The placements of tensors of `rank` whose dims are one factor each, by `_Tensor.placed`'s codes; filled there."""
    del mesh, rank
    return {}


def _tensors(rule: FactorRule, mesh: DeviceMesh) -> list[_Tensor]:
    """The operands and results in order; those that see the same are one object."""
    placements: dict[Placement, Placement] = {}
    known: dict[tuple[TensorFactors, tuple[Factor, ...]], _Tensor] = {}

    def tensor(dims: TensorFactors, unreduced: tuple[Factor, ...]) -> _Tensor:
        by_code = _by_code(mesh, len(dims))
        return known.setdefault((dims, unreduced), _Tensor(rule, mesh, dims, unreduced, placements, by_code))

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
