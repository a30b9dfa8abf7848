"""Batches: reads and writes that count along a dim, as `logp[jnp.arange(rows), labels]`, stated as one of each row.

Such a row of the indices is a number that the function knows, so the operator says less than it could: with the dim as
one of batches, a device that holds some rows reads and writes them by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autopar._compat import untyped_jax

Value = np.ndarray[Any, Any]

_lax: Any = untyped_jax.lax
_SCATTERS = ("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub")
KINDS = frozenset({"gather", *_SCATTERS})


@dataclass(frozen=True)
class _Names:
    """What a gather and a scatter call the same fields of their dimension numbers."""

    dropped: str
    indexed: str
    index_batches: str


_GATHER = _Names("collapsed_slice_dims", "start_index_map", "start_indices_batching_dims")
_SCATTER = _Names(
    "inserted_window_dims", "scatter_dims_to_operand_dims", "scatter_indices_batching_dims"
)


def stated_by_batches(
    eqn: Any, widths: Sequence[int], values: Sequence[Value | None]
) -> Callable[..., Any] | None:
    """What an equation of one of KINDS does, with the dims that it counts along as batches; None where there are none.

    It takes the parts of the indices in place of these.

    Args:
      eqn: the equation.
      widths: how many components of an index each of the parts has that the indices are, side by side.
      values: what is known of each part.
    """
    columns = [
        None if value is None else value[..., n]
        for width, value in zip(widths, values, strict=True)
        for n in range(width)
    ]
    names = _GATHER if eqn.primitive.name == "gather" else _SCATTER
    numbers = eqn.params["dimension_numbers"]
    indexed: tuple[int, ...] = getattr(numbers, names.indexed)
    shape: tuple[int, ...] = eqn.invars[0].aval.shape
    taken = set(getattr(numbers, names.index_batches))
    found: dict[int, tuple[int, int]] = {}  # by component, the dims of the operand and the indices
    for component, (dim, column) in enumerate(zip(indexed, columns, strict=True)):
        along = None if column is None else _counted(column, shape[dim], taken)
        if along is not None and dim in getattr(numbers, names.dropped):
            found[component] = dim, along
            taken.add(along)

    rest = [component for component in range(len(indexed)) if component not in found]
    if not found or not rest:
        return None

    pairs = zip(numbers.operand_batching_dims, getattr(numbers, names.index_batches), strict=True)
    batches = sorted([*pairs, *found.values()])
    dims = {dim for dim, _ in found.values()}
    batched = numbers._replace(
        operand_batching_dims=tuple(dim for dim, _ in batches),
        **{
            names.index_batches: tuple(along for _, along in batches),
            names.indexed: tuple(indexed[component] for component in rest),
            names.dropped: tuple(d for d in getattr(numbers, names.dropped) if d not in dims),
        },
    )
    params = {**eqn.params, "dimension_numbers": batched, "indices_are_sorted": False}

    def stated(operand: Any, *others: Any) -> Any:
        parts = others[: len(widths)]
        last = parts[0].ndim - 1
        columns = [
            part if width == 1 else _lax.slice_in_dim(part, n, n + 1, axis=last)
            for part, width in zip(parts, widths, strict=True)
            for n in range(width)
        ]
        left = [columns[component] for component in rest]
        indices = left[0] if len(left) == 1 else _lax.concatenate(left, last)
        return eqn.primitive.bind(operand, indices, *others[len(widths) :], **params)

    return stated


def _counted(column: Value, size: int, taken: set[int]) -> int | None:
    """The dim along which a column counts from 0 to `size`; None if it does along none that is not `taken`."""
    for dim, length in enumerate(column.shape):
        if length != size or dim in taken or not column.size:
            continue
        places = np.arange(size).reshape([-1 if d == dim else 1 for d in range(column.ndim)])
        if (column == places).all():
            return dim

    return None
