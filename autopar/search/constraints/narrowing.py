"""Narrowing: constraints are taken up one by one, and each variable keeps fewer of its candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.errors import InvalidConstraint
from autopar.search.constraints.matching import Matcher, Spot
from autopar.search.constraints.records import (
    ALL_AXES,
    Complete,
    Constraint,
    Follow,
    Forbid,
    Layout,
    Named,
    Pin,
    Replicate,
    Role,
    Steps,
    Target,
    Tie,
    show,
)
from autopar.solve import Edge
from autopar.solve.conflict.irreducible import thinned

Bools = NDArray[np.bool_]
_SHOWN = 5
_WHOLE = Layout(())


def axes_of(constraint: Constraint) -> frozenset[str]:
    """The mesh axes that `constraint` names."""
    match constraint:
        case Pin(layout=Layout() as layout) | Forbid(layout=Layout() as layout):
            return frozenset(layout.axes)
        case Forbid():
            return frozenset({constraint.axis})
        case Follow():
            return frozenset(axis for pin in constraint.pins for axis in axes_of(pin))
        case _:
            return frozenset()


@dataclass(eq=False)
class Narrowing:
    """What is left of a space: `keep` has the variables that were named; others keep all their candidates.

    Where not `strict`, a variable may lose its last candidate.
    """

    matcher: Matcher
    strict: bool = True
    keep: dict[int, Bools] = field(default_factory=dict[int, Bools])
    _taken: list[Constraint] = field(default_factory=list[Constraint])
    _groups: list[tuple[Tie, tuple[Spot, ...]]] = field(
        default_factory=list[tuple[Tie, tuple[Spot, ...]]]
    )

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of the space."""
        return self.matcher.space.mesh

    def take(self, constraints: Sequence[Constraint]) -> None:
        """Takes up constraints; what one end of a tie cannot be, the other ends cannot be either.

        Raises:
          InvalidConstraint: one is about nothing, names an axis that the mesh lacks, or (if `strict`) leaves nothing.
        """
        for constraint in constraints:
            self._check_axes(constraint)
            self._taken.append(constraint)
            self._take(constraint)
        changed = True
        while changed:
            changed = sum(self._narrow(tie, group) for tie, group in self._groups) > 0
        if self.strict and any(isinstance(constraint, Complete) for constraint in constraints):
            self._check_complete()

    def ties(self) -> tuple[Edge, ...]:
        """An edge from the first end of every tie to each of the others, unless one placement is all that is left."""
        equal: dict[tuple[int, int], NDArray[np.float64]] = {}
        found: list[Edge] = []
        for _, (first, *others) in self._groups:
            for spot in others if len(self._common((first,))) > 1 else ():
                key = (id(first.placements), id(spot.placements))
                if key not in equal:
                    equal[key] = np.where(
                        [[p == q for q in spot.placements] for p in first.placements], 0.0, np.inf
                    )
                if spot.variable != first.variable:
                    found.append(Edge(first.variable, spot.variable, equal[key]))
        return tuple(found)

    def _take(self, constraint: Constraint) -> None:
        match constraint:
            case Pin() | Replicate():
                for spot in self._full(constraint, constraint.target):
                    layout = (
                        self._layout(constraint, spot) if isinstance(constraint, Pin) else _WHOLE
                    )
                    self._leave(constraint, spot, _lying(layout, spot))
            case Forbid():
                for spot in self._full(constraint, constraint.target):
                    self._leave(constraint, spot, ~self._forbidden(constraint, spot))
            case Tie():
                self._groups += [(constraint, group) for group in self._tied(constraint)]
            case Follow():
                self._take_all(constraint)
            case Steps() | Complete():
                pass

    def _take_all(self, follow: Follow) -> None:
        for pin in follow.pins:
            try:
                self._take(pin)
            except InvalidConstraint as error:
                raise InvalidConstraint(f"{follow}: {error}") from error

    def _spots(self, constraint: Constraint, target: Target) -> tuple[Spot, ...]:
        found = self.matcher.spots(target)
        if not found and not isinstance(target, Role):
            raise InvalidConstraint(
                f"{constraint}: {target} is no input, output or operator of the function. {self.matcher.hint(target)}"
            )
        return found

    def _full(self, constraint: Constraint, target: Target) -> list[Spot]:
        """The spots of `target` that have elements: those without lie as they may, whatever is said of them."""
        return [spot for spot in self._spots(constraint, target) if 0 not in spot.shape]

    def _layout(self, pin: Pin, spot: Spot) -> Layout:
        """What the pin says of this tensor.

        Raises:
          InvalidConstraint: if the tensor has fewer dims, or one does not divide evenly.
        """
        layout = self._stated(pin.layout)
        if len(layout.dims) > len(spot.shape):
            if pin.uneven == "replicate":
                return _WHOLE
            dims = f"{len(layout.dims)} dims, the shape {spot.shape} has {len(spot.shape)}"
            raise InvalidConstraint(
                f"{pin}: {spot.name} cannot lie so: stated are {dims}. State no more than it has."
            )

        for dim, (size, axes) in enumerate(zip(spot.shape, layout.dims, strict=False)):
            parts = self.mesh.product(axes or ())
            if size % parts and pin.uneven == "replicate":
                return _WHOLE
            if size % parts:
                raise InvalidConstraint(
                    f"{pin}: {spot.name} of shape {spot.shape} cannot lie so on mesh {self.mesh}: dim {dim} of "
                    f"{size} does not divide evenly by {parts}. Pin another placement or change the shape."
                )

        return layout

    def _stated(self, layout: Layout) -> Layout:
        """`layout` with the mesh's axes for ALL_AXES, without those of one device."""
        every = self.mesh.names
        split = [
            axes if axes is None else every if axes == (ALL_AXES,) else axes for axes in layout.dims
        ]
        dims = tuple(axes if axes is None else self._several(axes) for axes in split)
        return Layout(
            dims,
            self._several(layout.unreduced),
            layout.kind if self._several(layout.unreduced) else "sum",
        )

    def _several(self, axes: Sequence[str]) -> tuple[str, ...]:
        return tuple(axis for axis in axes if self.mesh.product((axis,)) > 1)

    def _forbidden(self, forbid: Forbid, spot: Spot) -> Bools:
        if forbid.layout is None:
            return np.array([forbid.axis in axes for axes in spot.axes], dtype=np.bool_)
        layout = self._stated(forbid.layout)
        return (
            _lying(layout, spot)
            if len(layout.dims) <= len(spot.shape)
            else np.zeros(len(spot.axes), dtype=np.bool_)
        )

    def _tied(self, tie: Tie) -> list[tuple[Spot, ...]]:
        """The groups that `tie` ties, each of several spots of equally many dims, all with elements."""
        stars = {
            target.pattern.count("*") if isinstance(target, Named) else 0 for target in tie.targets
        }
        by_text = len(tie.targets) > 1 and len(stars) == 1
        groups: dict[tuple[str, ...], list[Spot]] = {}
        for spot in chain.from_iterable(self._spots(tie, target) for target in tie.targets):
            groups.setdefault(spot.captured if by_text else (), []).append(spot)

        found = [tuple(group) for group in groups.values() if len(group) > 1]
        if not found:
            raise InvalidConstraint(
                f"{tie} ties nothing: it names {sum(map(len, groups.values()))} apart from one another. Name several."
            )

        for first, *others in found:
            odd = next((spot for spot in others if len(spot.shape) != len(first.shape)), None)
            if odd is not None:
                raise InvalidConstraint(
                    f"{tie}: {first.name} of shape {first.shape} and {odd.name} of shape {odd.shape} have different "
                    f"numbers of dims, so no placement in common. Tie tensors of equally many."
                )

        full = [tuple(spot for spot in group if 0 not in spot.shape) for group in found]
        for spot in chain.from_iterable(full):
            self._mask(spot)

        return [group for group in full if len(group) > 1]

    def _common(self, group: Sequence[Spot]) -> frozenset[Placement]:
        """The placements that all spots of a group may still have."""
        left: set[Placement] | None = None
        for spot in group:
            mine = {
                p for p, kept in zip(spot.placements, self.keep[spot.variable], strict=True) if kept
            }
            left = mine if left is None else left & mine
        return frozenset(left or ())

    def _narrow(self, tie: Tie, group: tuple[Spot, ...]) -> bool:
        """Whether the tie leaves less than before."""
        common = self._common(group)
        before = sum(int(self.keep[spot.variable].sum()) for spot in group)
        for spot in group:
            same = [
                p in common
                and all(
                    p == other.placements[n] for other in group if other.variable == spot.variable
                )
                for n, p in enumerate(spot.placements)
            ]
            self.keep[spot.variable] &= np.array(same, dtype=np.bool_)

        after = sum(int(self.keep[spot.variable].sum()) for spot in group)
        if self.strict and not all(self.keep[spot.variable].any() for spot in group):
            others = self._to_blame(tie)
            names = ", ".join(dict.fromkeys(spot.name for spot in group))
            raise InvalidConstraint(
                f"{tie}: {names} have no placement in common on mesh {self.mesh}"
                f"{f', under {show(others)}. Drop one of these' if others else ''}."
            )

        return after < before

    def _to_blame(self, constraint: Constraint) -> tuple[Constraint, ...]:
        """A smallest part of the others taken up so far that leaves some variable nothing beside `constraint`."""

        def clash(others: Sequence[Constraint]) -> bool:
            alone = Narrowing(self.matcher, strict=False)
            alone.take((*others, constraint))
            return not all(mask.any() for mask in alone.keep.values())

        return thinned(
            [other for other in dict.fromkeys(self._taken) if other != constraint], clash
        )

    def _mask(self, spot: Spot) -> Bools:
        return self.keep.setdefault(spot.variable, np.ones(len(spot.placements), dtype=np.bool_))

    def _leave(self, constraint: Constraint, spot: Spot, mask: Bools) -> None:
        """Leaves only the candidates in `mask`."""
        self.keep[spot.variable] = self._mask(spot) & mask
        if not self.strict or self.keep[spot.variable].any():
            return

        if not mask.any():
            there = list(dict.fromkeys(map(str, spot.placements)))
            shown = ", ".join(there[:_SHOWN]) + (" ..." if len(there) > _SHOWN else "")
            raise InvalidConstraint(
                f"{constraint}: {spot.name} of shape {spot.shape} cannot lie so on mesh {self.mesh}. It may lie as "
                f"{shown}; at operators, and where a plan is resolved, several axes on one dim stand in mesh order."
            )

        others = show(self._to_blame(constraint))
        raise InvalidConstraint(
            f"{constraint} contradicts {others}: together they leave no placement for {spot.name} on mesh "
            f"{self.mesh}. Drop one of them."
        )

    def _check_axes(self, constraint: Constraint) -> None:
        axes = self.mesh.whole.names
        lacking = sorted(axes_of(constraint) - set(axes))
        if lacking:
            raise InvalidConstraint(
                f"{constraint}: mesh {self.mesh} has no axis {', '.join(map(repr, lacking))}; its axes are "
                f"{', '.join(axes)}. Name one of these, or pass mesh= with the axes that you mean."
            )

    def _check_complete(self) -> None:
        """Raises InvalidConstraint unless every input and output has one candidate left."""
        space = self.matcher.space
        graph = self.matcher.graph
        variables = {n: tensor.name or f"input {n}" for n, tensor in enumerate(graph.inputs)}
        variables |= {
            v: graph.output_name(n)
            for n, v in space.output_variables.items()
            if v >= len(space.inputs)
        }
        counts = space.counts
        open_ones = [
            n
            for v, n in variables.items()
            if (self.keep[v].sum() if v in self.keep else counts[v]) > 1
        ]

        if open_ones:
            more = f" and {len(open_ones) - _SHOWN} more" if len(open_ones) > _SHOWN else ""
            raise InvalidConstraint(
                f"mode 'manual' wants every input and output pinned; open are {', '.join(open_ones[:_SHOWN])}{more}. "
                f"Pin them by autopar.pin or autopar.replicate, or choose mode='semi_auto' to have them searched."
            )


def _lying(layout: Layout, spot: Spot) -> Bools:
    return np.array([layout.agrees(placement) for placement in spot.placements], dtype=np.bool_)
