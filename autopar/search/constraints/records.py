"""Constraints: what a user holds a plan to, as data. Each says what it is about (a Target) and what must hold of it.

Every record shows itself as the call that makes it (`str`): errors, reports and plan files quote that text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autopar.core.mesh import DeviceMesh
from autopar.core.pins import Spec
from autopar.core.placement import Kind, Placement, StepKind

ALL_AXES = "*"
"""In a Layout: all axes of the mesh, major to minor."""


@dataclass(frozen=True)
class Named:
    """Inputs and outputs by path, and values by the name that `jax.ad_checkpoint.checkpoint_name` gave them.

    `pattern` is a whole path ("params['w1']", "output[0]"), the beginning of paths ("params['layers']"), or has `*`
    for any characters ("params['layers'][*]['w1']", "opt_state*").
    """

    pattern: str
    target: Literal["named"] = "named"

    def __str__(self) -> str:
        return repr(self.pattern)


@dataclass(frozen=True)
class At:
    """A result (or operand) of operators, found by what is given; "" is any, `*` stands for any characters.

    `source` is a line ("model.py:41") or file, `kind` the operator's ("dot_general"), `scope` its name stack.
    `position` counts results, or operands where `side` is "operand".
    """

    source: str = ""
    kind: str = ""
    scope: str = ""
    side: Literal["result", "operand"] = "result"
    position: int = 0
    target: Literal["at"] = "at"

    def __str__(self) -> str:
        given = [repr(self.source)] if self.source else []
        given += [
            f"{name}={value!r}"
            for name, value in (("kind", self.kind), ("scope", self.scope))
            if value
        ]
        if self.side == "operand" or self.position:
            given.append(f"{self.side}={self.position}")
        return f"at({', '.join(given)})"


@dataclass(frozen=True)
class Role:
    """Inputs by what they are: those that hold "data", one row for each example, or all "others"."""

    role: Literal["data", "others"]
    target: Literal["role"] = "role"

    def __str__(self) -> str:
        return f"<inputs that are {'data' if self.role == 'data' else 'not data'}>"


Target = Named | At | Role


@dataclass(frozen=True)
class Layout:
    """A placement as a user states it: for each dim its axes, None where the dim is left open.

    Dims that are not stated are whole. `unreduced` axes with their `kind` as in Placement; none unless stated.
    """

    dims: Spec
    unreduced: tuple[str, ...] = ()
    kind: Kind = "sum"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that are named, other than ALL_AXES."""
        split = tuple(axis for axes in self.dims for axis in axes or () if axis != ALL_AXES)
        return (*split, *self.unreduced)

    def agrees(self, placement: Placement) -> bool:
        """Whether `placement`, of a tensor with at least as many dims, is as stated."""
        stated = (*self.dims, *((),) * (len(placement.dims) - len(self.dims)))
        split = all(
            axes is None or axes == own for axes, own in zip(stated, placement.dims, strict=True)
        )
        return (
            split
            and placement.unreduced == tuple(sorted(self.unreduced))
            and placement.kind == self.kind
        )

    def __str__(self) -> str:
        if self.unreduced:
            return f"Placement({self.dims}, {self.unreduced}, {self.kind!r})"
        return f"P({', '.join(map(_show_axes, self.dims))})"


def _show_axes(axes: tuple[str, ...] | None) -> str:
    if axes is None:
        return "P.UNCONSTRAINED"
    if len(axes) == 1:
        return repr(axes[0])
    return repr(axes) if axes else "None"


@dataclass(frozen=True)
class Pin:
    """What `target` names lies as `layout` says; where `uneven` is "replicate", whole if that does not divide it."""

    target: Target
    layout: Layout
    uneven: Literal["refuse", "replicate"] = "refuse"
    constraint: Literal["pin"] = "pin"

    def __str__(self) -> str:
        return f"pin({self.target}, {self.layout})"


@dataclass(frozen=True)
class Replicate:
    """What `target` names is whole on every device."""

    target: Target
    constraint: Literal["replicate"] = "replicate"

    def __str__(self) -> str:
        return f"replicate({self.target})"


@dataclass(frozen=True)
class Forbid:
    """What `target` names is never as `layout` says, or never split over `axis`.

    An operator that is forbidden an axis does not use it at all: in no operand, result or index that it sums over.
    """

    target: Target
    layout: Layout | None = None
    axis: str = ""
    constraint: Literal["forbid"] = "forbid"

    def __str__(self) -> str:
        return f"forbid({self.target}, {repr(self.axis) if self.layout is None else self.layout})"


@dataclass(frozen=True)
class Tie:
    """What the targets name has one placement, the same for all.

    Several targets that have `*` tie what they name with the same text in its place; one target, all that it names.
    """

    targets: tuple[Target, ...]
    constraint: Literal["tie"] = "tie"

    def __str__(self) -> str:
        return f"tie({', '.join(map(str, self.targets))})"


@dataclass(frozen=True)
class Follow:
    """Inputs or outputs lie as something does elsewhere: pins that stand and fall together. `source` says where."""

    source: str
    pins: tuple[Pin, ...]
    constraint: Literal["follow"] = "follow"

    def __str__(self) -> str:
        return f"{self.source}: {len(self.pins)} array{'' if len(self.pins) == 1 else 's'}"


@dataclass(frozen=True)
class Steps:
    """Values are redistributed by steps of these kinds only, where that leaves any plan."""

    kinds: tuple[StepKind, ...]
    constraint: Literal["steps"] = "steps"

    def __str__(self) -> str:
        return f"<redistributing by {', '.join(self.kinds)} only>"


@dataclass(frozen=True)
class Complete:
    """Every input and output has one placement that is left: nothing but what lies between them is searched."""

    constraint: Literal["complete"] = "complete"

    def __str__(self) -> str:
        return "<every input and output pinned>"


_SHOWN = 4
"""More constraints than these are counted, not listed."""
Constraint = Pin | Replicate | Forbid | Tie | Follow | Steps | Complete


def step_kinds_of(constraints: Sequence[Constraint]) -> tuple[tuple[StepKind, ...], ...]:
    """The sets of redistribution steps to try in turn, () for all: the next where one leaves no plan."""
    sets = [constraint.kinds for constraint in constraints if isinstance(constraint, Steps)]
    if not sets:
        return ((),)
    common = set(sets[0]).intersection(*sets)
    return tuple(kind for kind in sets[0] if kind in common), ()


def out_of_order(constraints: Sequence[Constraint], mesh: DeviceMesh) -> tuple[Spec, ...]:
    """The layouts of pins that state the axes of a dim in another order than the mesh; axes of one device left out."""
    pinned = [
        pin.layout.dims for pin in constraints if isinstance(pin, Pin) and not pin.layout.unreduced
    ]
    known = dict.fromkeys(
        tuple(
            None if axes is None else tuple(axis for axis in axes if axis in mesh.names)
            for axes in dims
        )
        for dims in pinned
    )
    return tuple(dims for dims in known if any(axes and axes != mesh.sort(axes) for axes in dims))


def show(constraints: Sequence[Constraint]) -> str:
    """The constraints as text, in order; of many how many of each kind there are."""
    if len(constraints) <= _SHOWN:
        return "; ".join(map(str, constraints))
    counts = Counter(constraint.constraint for constraint in constraints)
    return ", ".join(f"{count} x {kind}" for kind, count in counts.items())
