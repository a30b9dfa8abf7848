"""DeviceMesh: the devices of a cluster as a named grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from operator import index

from autopar.errors import InvalidMesh


@dataclass(frozen=True)
class DeviceMesh:
    """A grid of devices with a name for each axis, major to minor.

    Devices are numbered row-major: the last axis changes fastest, so it lies on the innermost links.

    An axis of one device splits nothing, and each costs a search as much as a real one. So plans are searched on the
    `searched` axes; the `whole` mesh is what users and JAX see.

    Invariants: at least one axis; names are distinct and not empty; sizes are whole numbers >= 1.
    """

    axes: tuple[tuple[str, int], ...]
    given: tuple[tuple[str, int], ...] = ()
    """Where `axes` are not all: all of them, in order; those that are left out are of one device each."""

    def __post_init__(self) -> None:
        if self.given and [axis for axis in self.given if axis in self.axes] != list(self.axes):
            raise ValueError(f"mesh axes {self.axes} are not a part of {self.given}")
        names = [name for name, _ in self.axes]
        if not names:
            raise InvalidMesh("a mesh needs at least one axis, such as {'x': 8}")
        if len(set(names)) != len(names) or not all(names):
            raise InvalidMesh(f"mesh axes must be named and distinct, got {names}")
        for name, size in self.axes:
            if size < 1:
                raise InvalidMesh(f"mesh axis {name!r} has size {size}; sizes are >= 1")

    @classmethod
    def of(cls, axes: Mapping[str, int]) -> DeviceMesh:
        """The mesh with these axis sizes, in the mapping's order (major to minor)."""
        return cls(tuple((name, _whole(name, size)) for name, size in axes.items()))

    @property
    def whole(self) -> DeviceMesh:
        """The mesh with all its axes."""
        return DeviceMesh(self.given) if self.given else self

    @property
    def searched(self) -> DeviceMesh:
        """The mesh without axes of one device; if there are no others, with the first."""
        given = self.given or self.axes
        several = tuple(axis for axis in given if axis[1] > 1) or given[:1]
        return DeviceMesh(several, given if several != given else ())

    @property
    def names(self) -> tuple[str, ...]:
        """The axis names, major to minor."""
        return tuple(name for name, _ in self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The axis sizes, major to minor."""
        return tuple(size for _, size in self.axes)

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(self.sizes)

    @cached_property
    def _size_of(self) -> dict[str, int]:
        return dict(self.given or self.axes)

    def product(self, axes: Iterable[str]) -> int:
        """The number of devices along `axes` together."""
        size_of = self._size_of
        count = 1
        for axis in axes:
            count *= size_of[axis]
        return count

    def sort(self, axes: Iterable[str]) -> tuple[str, ...]:
        """`axes` in mesh order, major to minor."""
        return tuple(sorted(axes, key=self.names.index))

    def __str__(self) -> str:
        axes = [f"{name}={size}" for name, size in self.given or self.axes]
        return axes[0] if len(axes) == 1 else f"({', '.join(axes)})"


def _whole(name: str, size: object) -> int:
    try:
        if isinstance(size, bool):
            raise TypeError("a bool is no size")
        return index(size)  # pyright: ignore[reportArgumentType] - what has no __index__ is refused here
    except TypeError as error:
        raise InvalidMesh(
            f"mesh axis {name!r} has size {size!r}; sizes are whole numbers >= 1"
        ) from error
