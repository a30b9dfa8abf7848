"""The one enumerator: from an operator's rule and a mesh, every strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import chain, combinations, islice, repeat
from math import lcm, prod
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Kind, Placement
from autopar.core.strategy import Exchange, Strategy
from autopar.ops.rules.factor_rule import Factor, FactorRule, TensorFactors, Traffic

Axes = tuple[str, ...]
Given = tuple[tuple[Factor, Axes], ...]
Ints = NDArray[np.int64]
T = TypeVar("T")
_KINDS: tuple[Kind, ...] = ("sum", "max", "min")


def enumerate_strategies(rule: FactorRule, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    """Every strategy of the operator on `mesh`, the replicated one first if it is one, in a fixed order.

    A mesh axis goes to at most one factor; several axes on one factor stand in mesh order. What does not divide
    evenly, splits a minor factor of a compound dim before the major one is whole to the device, needs elements from
    beyond its neighbours, or would leave a tensor unreduced in two ways at once does not exist. Strategies with equal
    placements are listed once. Equal rules, of whatever operators, have the same tuple, unless they exchange.
    """
    if rule.exchanged or rule.ways:
        return _enumerate(rule, mesh)
    return _of_equal_rules(_ByContent(rule, mesh), mesh)


@dataclass(frozen=True, eq=False)
class _ByContent:
    """A rule in one way and without exchanges, equal to another that says the same.

    Most operators of one shape share theirs.

    Of a factor's size only what divides it matters, unless it makes a dim together with others.
    """

    rule: FactorRule
    mesh: DeviceMesh

    @cached_property
    def content(self) -> tuple[object, ...]:
        rule = self.rule
        counts = _counts(self.mesh.sizes)
        together = {
            f
            for dims in (*rule.ins, *rule.outs)
            for factors in dims
            if len(factors) > 1
            for f in factors
        }
        sizes = tuple(
            [
                (f, n if f in together else (n > 0, _divided(n, counts)))
                for f, n in rule.sizes.items()
            ]
        )
        reduced = tuple(rule.reduced.items())
        carried = tuple(rule.carried.items())

        return (
            rule.ins,
            rule.outs,
            sizes,
            reduced,
            carried,
            rule.frozen,
            rule.everywhere,
            rule.split,
        )

    def __hash__(self) -> int:
        return hash(self.content)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByContent) and self.content == other.content


@lru_cache(maxsize=256)
def _counts(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers of parts that axes of these sizes can split a dim into."""
    return tuple(
        sorted({prod(each) for n in range(len(sizes) + 1) for each in combinations(sizes, n)})
    )


@lru_cache(maxsize=65536)
def _divided(size: int, counts: tuple[int, ...]) -> int:
    """The least number that the same of `counts` divide evenly as divide `size`."""
    return lcm(*[count for count in counts if size % count == 0])


@lru_cache(maxsize=4096)
def _of_equal_rules(rule: _ByContent, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    return _enumerate(rule.rule, mesh)


def _enumerate(rule: FactorRule, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    """One strategy for each assignment that gives every tensor a placement, the first of those that give the same."""
    found: dict[tuple[int, ...], Strategy] = {}
    for way in (rule, *rule.ways):
        _collect(way, mesh, found)
    return tuple(found.values())


def _collect(rule: FactorRule, mesh: DeviceMesh, found: dict[tuple[int, ...], Strategy]) -> None:
    """Adds the strategies of one way to those `found`, by the objects that their placements are."""
    names = tuple(name for name, size in mesh.axes if size > 1)
    sizes = tuple(size for size in mesh.sizes if size > 1)
    rows = _held(rule, _contiguous(rule, sizes, _assignments(rule, sizes)))
    columns = _placements(rule, names, rows)
    placed = zip(*columns, strict=True) if columns else repeat(tuple[Placement, ...](), len(rows))
    operands = len(rule.ins)

    for whole, given, split in zip(
        placed, _given(rule, names, rows), _splits(rule, sizes, rows), strict=True
    ):
        key = tuple(map(id, whole))  # of one tensor equal placements are one object
        if key in found or not all(whole):
            continue
        exchanges = _exchanges(rule, mesh, dict(given), whole) if rule.exchanged else ()
        if exchanges is not None:
            found[key] = Strategy(whole[:operands], whole[operands:], given, split, exchanges)


def _assignments(rule: FactorRule, sizes: tuple[int, ...]) -> Ints:
    """Every way to give each axis to a factor or to none, the last axis changing fastest, that divides evenly.

    row[axis] is the number of the factor that the axis goes to, from 1 on as `rule.sizes` lists them; 0 is none.
    """
    number = {factor: n for n, factor in enumerate(rule.sizes, 1)}
    options = (
        (0, *(number[f] for f in rule.factors))
        if rule.everywhere is None
        else (number[rule.everywhere],)
    )
    counts = _counts(sizes)
    return _dividing(sizes, options, (0, *(_divided(size, counts) for size in rule.sizes.values())))


@lru_cache(maxsize=1024)
def _dividing(
    axis_sizes: tuple[int, ...], options: tuple[int, ...], extents: tuple[int, ...]
) -> Ints:
    """`_assignments` of axes to `options`, factor n of which has the size `extents[n]`."""
    extent = np.array(extents, dtype=np.int64)
    option = np.array(options, dtype=np.int64)
    rows = np.zeros((1, 0), dtype=np.int64)
    sizes = np.zeros(0, dtype=np.int64)
    for size in axis_sizes:
        last = np.tile(option, len(rows))
        rows = np.column_stack([np.repeat(rows, len(option), axis=0), last])
        sizes = np.append(sizes, size)
        rows = rows[extent[last] % _parts(rows, last, sizes) == 0]
    return rows


def _parts(rows: Ints, factor: Ints | int, sizes: Ints) -> Ints:
    """Into how many parts each assignment cuts a factor: the same one in all, or one for each."""
    return np.where(rows == np.reshape(factor, (-1, 1)), sizes, 1).prod(axis=1)


def _contiguous(rule: FactorRule, axis_sizes: tuple[int, ...], rows: Ints) -> Ints:
    """The assignments under which every shard of a compound dim is one run.

    A factor may be split only if those before it are used up.
    """
    number = {factor: n for n, factor in enumerate(rule.sizes, 1)}
    sizes = np.array(axis_sizes, dtype=np.int64)
    for compound in {
        factors for dims in (*rule.ins, *rule.outs) for factors in dims if len(factors) > 1
    }:
        whole, is_run = np.ones((2, len(rows)), dtype=np.bool_)
        for factor in compound:
            parts = _parts(rows, number[factor], sizes)
            is_run &= whole | (parts == 1)
            whole &= parts == rule.sizes[factor]
        rows = rows[is_run]
    return rows


def _held(rule: FactorRule, rows: Ints) -> Ints:
    """The assignments that split the factors that are to be, of those that can be."""
    for number in (n for n, factor in enumerate(rule.sizes, 1) if factor in rule.split):
        is_split = (rows == number).any(axis=1)
        rows = rows[is_split] if is_split.any() else rows
    return rows


def _given(rule: FactorRule, names: Axes, rows: Ints) -> list[Given]:
    """The factors that each assignment gives axes to, by their first axes, with these."""
    factors = tuple(rule.sizes)
    known = _known_given(factors, names)
    return _by_code(rows, 1 + len(factors), known, partial(_given_by, factors, names, known))


@lru_cache(maxsize=1024)
def _known_given(factors: tuple[Factor, ...], names: Axes) -> dict[int, Given]:
    """What `_given` has met, by its codes; filled there."""
    del factors, names
    return {0: ()}


def _given_by(factors: Sequence[Factor], names: Axes, known: dict[int, Given], code: int) -> Given:
    """What is given without the last axis that goes to a factor, and that axis."""
    base = 1 + len(factors)
    power = 1
    axis = 0
    while power * base <= code:
        power = power * base
        axis = axis + 1

    number, before = divmod(code, power)
    factor = factors[number - 1]
    name = names[axis]
    if not before:
        return ((factor, (name,)),)

    for part in (before, number * power):
        if part not in known:
            known[part] = _given_by(factors, names, known, part)

    given = known[before]
    if all(other != factor for other, _ in given):
        return given + known[number * power]

    return tuple((other, (*axes, name) if other == factor else axes) for other, axes in given)


def _splits(rule: FactorRule, sizes: tuple[int, ...], rows: Ints) -> list[int]:
    """Into how many parts each assignment cuts the operator's work."""
    counted = np.array([0, *(size > 0 for size in rule.sizes.values())], dtype=np.bool_)[rows]
    return cast(
        list[int], np.where(counted, np.array(sizes, dtype=np.int64), 1).prod(axis=1).tolist()
    )


def _placements(rule: FactorRule, names: Axes, rows: Ints) -> list[list[Placement | None]]:
    """For each operand and result its placements under all assignments; None where it has none."""
    table = _table(names)
    known: dict[tuple[TensorFactors, tuple[Factor, ...]], list[Placement | None]] = {}
    found: list[list[Placement | None]] = []
    for tensor in _tensors(rule):
        if tensor not in known:
            known[tensor] = _placed(rule, names, table, *tensor, rows)
        found.append(known[tensor])
    return found


def _tensors(rule: FactorRule) -> list[tuple[TensorFactors, tuple[Factor, ...]]]:
    """The operands and results in order: the factors of their dims, and those over whose axes they are unreduced."""
    found: list[tuple[TensorFactors, tuple[Factor, ...]]] = []
    for operand, dims in enumerate(rule.ins):
        found.append(
            (dims, tuple(f for f, operands in rule.carried.items() if operand in operands))
        )
    for dims in rule.outs:
        held = {f for factors in dims for f in factors}
        found.append((dims, tuple(f for f in rule.reduced if f not in held)))
    return found


@dataclass(frozen=True, eq=False)
class _PlacementTable:
    """Placements on one mesh, equal ones one object: tensors of operators of all kinds share most of theirs.

    `by_code` has those of tensors whose dims have so many factors each, by `_placed`'s codes.
    """

    equal: dict[Placement, Placement] = field(default_factory=dict[Placement, Placement])
    by_code: dict[tuple[int, ...], dict[int, Placement | None]] = field(
        default_factory=dict[tuple[int, ...], dict[int, Placement | None]]
    )


@lru_cache(maxsize=64)
def _table(names: Axes) -> _PlacementTable:
    del names
    return _PlacementTable()


def _placed(
    rule: FactorRule,
    names: Axes,
    table: _PlacementTable,
    dims: TensorFactors,
    unreduced: tuple[Factor, ...],
    rows: Ints,
) -> list[Placement | None]:
    """The placements of one tensor under all assignments.

    What an axis does is a digit: nothing, split a factor of a dim, or leave the tensor unreduced by some kind.
    """
    counts = tuple(map(len, dims))
    held = [factor for factors in dims for factor in factors]
    digit = dict.fromkeys(rule.sizes, 0) | {factor: n for n, factor in enumerate(held, 1)}
    digit |= {factor: 1 + len(held) + _KINDS.index(rule.reduced[factor]) for factor in unreduced}
    digits = np.array([0, *digit.values()], dtype=np.int64)[rows]
    known = table.by_code.setdefault(counts, {})
    base = 1 + len(held) + len(_KINDS)

    def placement(code: int) -> Placement | None:
        found = _placed_by(counts, names, base, code)
        return None if found is None else table.equal.setdefault(found, found)

    return _by_code(digits, base, known, placement)


def _placed_by(counts: tuple[int, ...], names: Axes, base: int, code: int) -> Placement | None:
    """The placement of a tensor whose dims have so many factors each, by the digit of every axis, below `base`.

    None where it would be unreduced by several kinds.
    """
    of_digit: list[Axes] = [()] * base
    for name in names:
        code, digit = divmod(code, base)
        of_digit[digit] += (name,)

    places = iter(of_digit[1:])
    split = list[Axes]()
    for count in counts:
        split.append(tuple(chain.from_iterable(islice(places, count))))

    unreduced: list[tuple[Axes, Kind]] = [
        (axes, kind) for kind, axes in zip(_KINDS, places, strict=True) if axes
    ]
    if len(unreduced) > 1:
        return None

    return Placement(tuple(split), *unreduced[0]) if unreduced else Placement(tuple(split))


def _by_code(rows: Ints, base: int, known: dict[int, T], make: Callable[[int], T]) -> list[T]:
    """What `make` says of each row of digits below `base`, as a number; `known` has what was asked before."""
    codes = cast(list[int], (rows @ base ** np.arange(rows.shape[1], dtype=np.int64)).tolist())
    for code in codes:
        if code not in known:
            known[code] = make(code)
    return [known[code] for code in codes]


def _exchanges(
    rule: FactorRule, mesh: DeviceMesh, given: dict[Factor, Axes], placed: tuple[Placement, ...]
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
                size = _elements(traffic, extent) * (
                    traffic.itemsize or rule.itemsizes[traffic.tensor]
                )
                found.append(
                    Exchange(traffic.kind, axes, size, traffic.tensor, traffic.hop, traffic.rounds)
                )
            if traffic.extent is not None and traffic.dim is not None:
                extent[traffic.dim] = traffic.extent

    return tuple(found)


def _local_shape(
    rule: FactorRule, mesh: DeviceMesh, placed: tuple[Placement, ...], tensor: int
) -> tuple[int, ...]:
    dims = (*rule.ins, *rule.outs)[tensor]
    return placed[tensor].local_shape(
        [prod(rule.sizes[f] for f in factors) for factors in dims], mesh
    )


def _elements(traffic: Traffic, extent: list[int]) -> int:
    """The elements of one message."""
    return traffic.elements * prod(size for d, size in enumerate(extent) if d != traffic.dim)
