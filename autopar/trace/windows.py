"""Windows: reads and writes at indices that are known when the function is traced, as slices, paddings and selections.

`x[1:-1]` is a slice, but the gradient of `x.at[1:-1].set(y)` is a gather, and `x.at[::2].set(y)` a scatter at indices
that are counted. As slices they are split like slices. A write of much of a tensor is a selection between the tensor
and the update, padded to where it goes; one of a few rows is an update of a slice, which can be done in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from autopar._compat import untyped_jax

Ints = tuple[int, ...]
Value = np.ndarray[Any, Any]
Function = Callable[..., Any]

_lax: Any = untyped_jax.lax
_MUCH = 2
"""A run of rows is much if it is so large a part of the tensor (1 / _MUCH): then a copy takes about as long."""
_MUCH_STRIDED = 8
"""The same for rows with gaps between them, which a compiler writes one by one."""


def _written(_: Any, update: Any) -> Any:
    return update


_COMBINED: dict[str, Function] = {
    "dynamic_update_slice": _written,
    "scatter": _written,
    "scatter-add": _lax.add,
    "scatter-max": _lax.max,
    "scatter-min": _lax.min,
    "scatter-mul": _lax.mul,
    "scatter-sub": _lax.sub,
}
KINDS = frozenset({"dynamic_slice", "gather", *_COMBINED})


def index_operands(kind: str, count: int) -> range:
    """Which of `count` operands of an operator of KINDS say where it reads or writes."""
    if kind == "dynamic_slice":
        return range(1, count)
    return range(2, count) if kind == "dynamic_update_slice" else range(1, 2)


@dataclass(frozen=True)
class PlaceGrid:
    """Places of a tensor: for each dim where they begin, how far apart they are, and how many.

    `counted` is the dim along which every index is one place, if there are several indices.
    """

    starts: Ints
    strides: Ints
    counts: Ints
    counted: int | None = None

    def fits(self, shape: Ints) -> bool:
        """Whether all places are in a tensor of this shape."""
        dims = zip(self.starts, self.strides, self.counts, shape, strict=True)
        return all(
            count and start >= 0 and start + (count - 1) * stride < size
            for start, stride, count, size in dims
        )

    def config(self, shape: Ints) -> list[tuple[int, int, int]]:
        """How an update is padded to the tensor's shape."""
        dims = zip(self.starts, self.strides, self.counts, shape, strict=True)
        return [
            (start, size - start - (count - 1) * stride - 1, stride - 1)
            for start, stride, count, size in dims
        ]


def stated_by_windows(eqn: Any, indices: Sequence[Value | None]) -> Function | None:
    """What an equation of one of KINDS does, as slices or selections; None where its indices are not known or such.

    Args:
      eqn: the equation.
      indices: what is known of its `index_operands`.
    """
    kind = eqn.primitive.name
    shapes = [tuple(atom.aval.shape) for atom in eqn.invars]
    if any(value is None for value in indices):
        return None

    if kind in ("dynamic_slice", "dynamic_update_slice"):
        sizes = eqn.params["slice_sizes"] if kind == "dynamic_slice" else shapes[1]
        window = _clamped(shapes[0], sizes, indices)
        order: Ints = tuple(range(len(sizes)))
    elif eqn.params.get("update_jaxpr") is not None and kind == "scatter":
        return None
    else:
        numbers = eqn.params["dimension_numbers"]
        placed = _placed(kind, numbers, eqn.params, shapes)
        window = None if indices[0] is None or placed is None else _window(indices[0], placed)
        order = () if placed is None else placed.order

    if window is None or not window.fits(shapes[0]):
        return None

    out = tuple(eqn.outvars[0].aval.shape)
    if kind in ("dynamic_slice", "gather"):
        return _reading(window, order, out)
    if _is_much(window, shapes[0]):
        return _selecting(kind, window, order, shapes[0])

    return (
        _updating(window, order, len(out))
        if kind == "scatter" and max(window.strides, default=1) == 1
        else None
    )


def _clamped(shape: Ints, sizes: Ints, starts: Sequence[Value | None]) -> PlaceGrid:
    """The window of a dynamic slice, moved into the tensor."""
    ends = zip([int(start) for start in starts if start is not None], sizes, shape, strict=True)
    return PlaceGrid(
        tuple(min(max(start, 0), whole - size) for start, size, whole in ends),
        (1,) * len(shape),
        sizes,
    )


@dataclass(frozen=True)
class _Placed:
    """How slices lie on a tensor: their sizes, the dims that the components of an index refer to.

    `order` gives for each dim of the tensor which dim of the slices, laid side by side, it is; -1 for those that are
    dropped.
    """

    sizes: Ints
    dims: Ints
    order: Ints


def _placed(kind: str, numbers: Any, params: Any, shapes: Sequence[Ints]) -> _Placed | None:
    """How a gather's or scatter's slices lie on the operand; None where dims are batched."""
    if numbers.operand_batching_dims:
        return None

    if kind == "gather":
        windows = numbers.offset_dims
        dropped = numbers.collapsed_slice_dims
        dims = numbers.start_index_map
        sizes: Ints = params["slice_sizes"]
    else:
        windows = numbers.update_window_dims
        dropped = numbers.inserted_window_dims
        dims = numbers.scatter_dims_to_operand_dims
        sizes = ()

    rest = iter(windows)
    order = tuple(-1 if d in dropped else next(rest) for d in range(len(shapes[0])))
    if kind != "gather":
        sizes = tuple(1 if e < 0 else shapes[2][e] for e in order)

    return _Placed(sizes, tuple(dims), order)


def _window(indices: Value, placed: _Placed) -> PlaceGrid | None:
    """The places that all indices together say, if they are evenly spaced along one dim at most."""
    starts = [0] * len(placed.sizes)
    strides = [1] * len(placed.sizes)
    counts = list(placed.sizes)
    rows = indices.reshape(prod(indices.shape[:-1]), indices.shape[-1]).astype(np.int64)
    if not len(rows):
        return None

    for component, dim in enumerate(placed.dims):
        starts[dim] = int(rows[0, component])

    if len(rows) == 1:
        return PlaceGrid(tuple(starts), tuple(strides), tuple(counts))

    steps = rows[1:] - rows[:-1]
    moving = np.flatnonzero(steps.any(axis=0))
    if (
        indices.ndim != 2
        or len(moving) != 1
        or (steps != steps[0]).any()
        or steps[0, moving[0]] < 1
    ):
        return None

    dim = placed.dims[int(moving[0])]
    if placed.order[dim] >= 0:
        return None

    strides[dim] = int(steps[0, moving[0]])
    counts[dim] = len(rows)
    return PlaceGrid(tuple(starts), tuple(strides), tuple(counts), dim)


def _is_much(window: PlaceGrid, shape: Ints) -> bool:
    much = _MUCH if max(window.strides, default=1) == 1 else _MUCH_STRIDED
    return much * prod(window.counts) >= prod(shape)


def _reading(window: PlaceGrid, order: Ints, out: Ints) -> Function:
    limits = [
        start + (count - 1) * stride + 1
        for start, stride, count in zip(window.starts, window.strides, window.counts, strict=True)
    ]
    before = _slices_order(window, order, len(out))

    def read(x: Any, *_: Any) -> Any:
        taken = _lax.slice(x, window.starts, limits, window.strides)
        return _lax.reshape(_lax.transpose(taken, before), out)

    return read


def _laid_out(window: PlaceGrid, order: Ints, last: int) -> Function:
    """The function that lays an update's dims out as the tensor has them."""
    before = _slices_order(window, order, last)
    back = tuple(int(d) for d in np.argsort(before))
    laid = tuple(window.counts[d] for d in before)

    def lay_out(update: Any) -> Any:
        return _lax.transpose(_lax.reshape(update, laid), back)

    return lay_out


def _updating(window: PlaceGrid, order: Ints, ndim: int) -> Function:
    """A write of a run of places, which can be done in place."""
    lay_out = _laid_out(window, order, ndim + 1)

    def write(x: Any, _: Any, update: Any) -> Any:
        return _lax.dynamic_update_slice(x, lay_out(update), window.starts)

    return write


def _selecting(kind: str, window: PlaceGrid, order: Ints, shape: Ints) -> Function:
    """A write as a selection between the tensor and what is written, padded to where it goes."""
    lay_out = _laid_out(window, order, len(shape) + 1)
    combine = _COMBINED[kind]

    def write(x: Any, *operands: Any) -> Any:
        update = lay_out(operands[0] if kind == "dynamic_update_slice" else operands[1])
        placed = _lax.pad(update, np.zeros((), x.dtype), window.config(shape))
        mask = _mask(window, shape)
        return combine(x, placed) if mask is None else _lax.select(mask, combine(x, placed), x)

    return write


def _slices_order(window: PlaceGrid, order: Ints, last: int) -> Ints:
    """The dims of the tensor in the order in which the slices have them: the counted one where their rows stand.

    Dropped dims have one place each, which may stand anywhere: where they are, if the others stand in order.
    """
    taken = {e for e in order if e >= 0}
    row = next((e for e in range(last) if e not in taken), last)
    keys = [
        row if d == window.counted else last + 1 + d if e < 0 else e for d, e in enumerate(order)
    ]
    wide = [key for key, count in zip(keys, window.counts, strict=True) if count > 1]
    return (
        tuple(range(len(order)))
        if wide == sorted(wide)
        else tuple(int(d) for d in np.argsort(keys))
    )


def _mask(window: PlaceGrid, shape: Ints) -> Any:
    """Which places of the tensor are written; None where all are."""
    found = None
    for d, (start, stride, count) in enumerate(
        zip(window.starts, window.strides, window.counts, strict=True)
    ):
        if count == shape[d]:
            continue
        places = _lax.sub(_lax.iota(np.int32, shape[d]), np.int32(start))
        inside = _lax.bitwise_and(
            _lax.ge(places, np.int32(0)), _lax.lt(places, np.int32(count * stride))
        )
        if stride > 1:
            inside = _lax.bitwise_and(
                inside, _lax.eq(_lax.rem(places, np.int32(stride)), np.int32(0))
            )
        along = _lax.broadcast_in_dim(inside, shape, (d,))
        found = along if found is None else _lax.bitwise_and(found, along)

    return found
