"""Sorts along a split dim, by devices that sort what they hold and deal it out (`core.columnsort`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autopar._compat import untyped_jax
from autopar.core.columnsort import DealtColumn, columns, is_numbered
from autopar.core.strategy import NEXT, PREVIOUS
from autopar.emit.local.shard import Array, LocalOp, Run
from autopar.emit.slicing import slice_at

lax = untyped_jax.lax
jnp = untyped_jax.numpy
Rows = list[Array]


def sort(local: LocalOp) -> Run:
    """Columnsort: the operands, and the place of every element as the last key where equal ones can be told apart."""
    axis: int = local.op.params["dimension"]
    axes = local.strategy.ins[0].dims[axis]
    shape = columns(local.op.ins[0].shape[axis], local.mesh.product(axes)) if axes else None
    if shape is None:
        return local.bind()
    return _Sorting(local, axis, axes, shape, is_numbered(local.op))


@dataclass(frozen=True)
class _Sorting:
    """The sort of one device's part along `axis`, which `axes` split; `numbered`: places are the last key."""

    local: LocalOp
    axis: int
    axes: tuple[str, ...]
    shape: DealtColumn
    numbered: bool

    @property
    def parts(self) -> int:
        """The number of devices."""
        return self.local.mesh.product(self.axes)

    def __call__(self, *operands: Array) -> Sequence[Array]:
        """The sorted operands."""
        count = len(operands)
        here = self.local.offset_of(self.axes)
        rows = self.sorted(self.filled(operands, here))
        rows = self.sorted([self.dealt_like_cards(x) for x in rows])
        rows = self.sorted([self.all_to_all(x, self.axis) for x in rows])
        rows = self.joined_with_neighbours(rows, here)[:count]
        return [self.moved_back(x, here) for x in rows] if self.shape.late else rows

    def filled(self, operands: Sequence[Array], here: Array) -> Rows:
        """The operands and the places of their elements, filled up with what comes last."""
        rows = [*operands]
        if self.numbered:
            places = here * self.shape.rows + lax.broadcasted_iota(
                np.int32, operands[0].shape, self.axis
            )
            rows.append(lax.convert_element_type(places, np.int32))
        widths = [(0, self.shape.late * (d == self.axis), 0) for d in range(operands[0].ndim)]
        return (
            [lax.pad(x, jnp.asarray(_last(x.dtype), x.dtype), widths) for x in rows]
            if self.shape.late
            else rows
        )

    def sorted(self, rows: Rows) -> Rows:
        """The rows in the order of their keys; what is equal in that of their places."""
        keys: int = self.local.op.params["num_keys"]
        if not self.numbered:
            return [*lax.sort(tuple(rows), dimension=self.axis, num_keys=keys)]
        *values, places = rows
        ordered = (*values[:keys], places, *values[keys:])
        found = [*lax.sort(ordered, dimension=self.axis, num_keys=keys + 1, is_stable=False)]
        return [*found[:keys], *found[keys + 1 :], found[keys]]

    def dealt_like_cards(self, value: Array) -> Array:
        """Every element goes to the device after that of the one before it."""
        shape = value.shape
        cards = value.reshape(
            *shape[: self.axis], self.shape.dealt, self.parts, *shape[self.axis + 1 :]
        )
        return self.all_to_all(cards, self.axis + 1).reshape(shape)

    def all_to_all(self, value: Array, split: int) -> Array:
        """The parts of dim `split` for this device, joined along the sorted dim."""
        return self.local.exchanger.all_to_all(value, self.axes, split, self.axis)

    def joined_with_neighbours(self, rows: Rows, here: Array) -> Rows:
        """Every half sorted with the first part of the next column."""
        cut = self.shape.filled - self.shape.half
        count = len(self.local.op.ins)
        firsts, halves = (
            [self.part(x, *ends) for x in rows] for ends in ((0, cut), (cut, self.shape.filled))
        )
        before = [self.local.exchanger.permute(x, self.axes, NEXT) for x in halves]
        merged = self.sorted(
            [lax.concatenate([*pair], self.axis) for pair in zip(before, firsts, strict=True)]
        )
        found: Rows = []
        for first, half, both in zip(firsts[:count], halves[:count], merged[:count], strict=True):
            back = self.local.exchanger.permute(
                self.part(both, 0, self.shape.half), self.axes, PREVIOUS
            )
            first = jnp.where(here == 0, first, self.part(both, self.shape.half, self.shape.filled))
            half = jnp.where(here == self.parts - 1, half, back)
            found.append(lax.concatenate([first, half], self.axis))

        return found

    def moved_back(self, value: Array, here: Array) -> Array:
        """The elements that this device has without those that its column, and those before it, were filled up with."""
        tail = self.part(value, self.shape.filled - self.shape.moved, self.shape.filled)
        both = lax.concatenate(
            [self.local.exchanger.permute(tail, self.axes, NEXT), value], self.axis
        )
        return slice_at(both, self.shape.moved - here * self.shape.late, self.shape.rows, self.axis)

    def part(self, value: Array, begin: int, end: int) -> Array:
        """The elements from `begin` to `end`."""
        return lax.slice_in_dim(value, begin, end, axis=self.axis)


def _last(dtype: Any) -> Any:
    """A value that nothing comes after in the order of sorts: NaN, where there is one."""
    if jnp.issubdtype(dtype, jnp.bool_):
        return True
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return complex(np.nan, np.nan)
    return np.nan if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max
