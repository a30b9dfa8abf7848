"""Placement: how one tensor lies on a mesh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Literal

from autopar.core.mesh import DeviceMesh

Kind = Literal["sum", "max", "min"]
StepKind = Literal[
    "all_gather", "all_to_all", "reduce_scatter", "all_reduce", "permute", "slice", "mask"
]
LOCAL_KINDS: frozenset[StepKind] = frozenset({"slice", "mask"})
"""The steps that change a placement; what each does stands at `redistribute.step.Step`."""
Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Placement:
    """For every dim the mesh axes that split it (major to minor), plus the axes over which it is unreduced.

    A tensor is replicated over every axis that is named nowhere. Over an `unreduced` axis the devices hold
    values still to be combined by `kind`. `unreduced` is kept sorted by name: its order has no meaning.

    Invariants: an axis is named at most once; `kind` is "sum" where nothing is unreduced.
    """

    dims: Dims
    unreduced: tuple[str, ...] = ()
    kind: Kind = "sum"

    def __post_init__(self) -> None:
        named = [axis for dim in self.dims for axis in dim]
        named += self.unreduced
        if len(set(named)) != len(named):
            raise ValueError(
                f"a mesh axis is named twice in placement {self.dims}, unreduced {self.unreduced}"
            )
        if not self.unreduced:
            object.__setattr__(self, "kind", "sum")
        elif len(self.unreduced) > 1:
            object.__setattr__(self, "unreduced", tuple(sorted(self.unreduced)))

    @classmethod
    def replicated(cls, ndim: int) -> Placement:
        """The placement that keeps the whole tensor on every device."""
        return cls(((),) * ndim)

    @property
    def split_axes(self) -> tuple[str, ...]:
        """The axes that split a dim, in the order of the dims."""
        return tuple(axis for dim in self.dims for axis in dim)

    @property
    def varying_axes(self) -> frozenset[str]:
        """The axes along which devices hold different values: split or unreduced."""
        return frozenset(self.split_axes) | frozenset(self.unreduced)

    def fits(self, shape: Iterable[int], mesh: DeviceMesh) -> bool:
        """Whether every dim of `shape` divides evenly."""
        return all(
            not axes or size % mesh.product(axes) == 0
            for size, axes in zip(shape, self.dims, strict=True)
        )

    def local_shape(self, shape: Iterable[int], mesh: DeviceMesh) -> tuple[int, ...]:
        """The shape on one device of a tensor of global `shape`."""
        return tuple(
            size // mesh.product(axes) for size, axes in zip(shape, self.dims, strict=True)
        )

    def local_size(self, shape: Iterable[int], mesh: DeviceMesh) -> int:
        """The number of elements on one device of a tensor of global `shape`."""
        return prod(
            size // mesh.product(axes) if axes else size
            for size, axes in zip(shape, self.dims, strict=True)
        )

    def __str__(self) -> str:
        dims = ", ".join("*".join(axes) if axes else "-" for axes in self.dims)
        tail = f" {self.kind}({','.join(self.unreduced)})" if self.unreduced else ""
        return f"[{dims}]{tail}"
