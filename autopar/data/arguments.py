"""Arguments: those of a plan that batches fill, and which rows of a batch a process needs for its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from autopar._compat import is_key_dtype, untyped_jax
from autopar.api.compiled import Compiled
from autopar.api.placing import Slot, slot_of
from autopar.api.plan import Plan
from autopar.data.source import Element, leaf_name
from autopar.emit.several import this_process
from autopar.errors import DataError, InvalidMesh, SignatureMismatch

_WIDE = ("int64", "uint64", "float64", "complex128")
"""What JAX takes for narrower ones, unless 64 bits are enabled."""


@dataclass(frozen=True)
class Arguments:
    """The arguments called `names`, of a plan: leaf by leaf what each is called, its type, and where it lies.

    `example` has their structure; `batch` is the number of rows, the first dim of every leaf.
    """

    names: tuple[str, ...]
    example: tuple[Any, ...]
    batch: int
    leaves: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]
    shardings: tuple[NamedSharding, ...]

    @classmethod
    def of(cls, plan: Plan, names: Sequence[str]) -> Arguments:
        """Those of `plan` with these names, as it prints them: of whole arguments, or of arrays in them.

        Raises:
          SignatureMismatch: it has no such argument.
          DataError: they have different numbers of rows, or none, or are keys.
          AutoparError: for a loaded plan.
        """
        if not names:
            raise DataError("loader: name the arguments that batches are for, such as 'images'")

        slots = [_slot(plan, name) for name in names]
        example = tuple(
            untyped_jax.tree_util.tree_unflatten(slot.tree, slot.positions) for slot in slots
        )
        paths, _ = untyped_jax.tree_util.tree_flatten_with_path(example)
        avals = [plan.bound.traced.input_avals[position] for _, position in paths]
        placed = untyped_jax.tree.leaves(plan.in_shardings())
        leaves = tuple(leaf_name(names, path) for path, _ in paths)
        return cls(
            tuple(names),
            example,
            _batch(dict(zip(leaves, avals, strict=True))),
            leaves,
            tuple(tuple(aval.shape) for aval in avals),
            tuple(aval.dtype for aval in avals),
            tuple(placed[position] for _, position in paths),
        )

    def element(self) -> Element:
        """What an element of a source has to be."""
        accepted = tuple(
            frozenset({dtype, *(wide for wide in map(np.dtype, _WIDE) if _is_taken(wide, dtype))})
            for dtype in self.dtypes
        )
        shapes = tuple(shape[1:] for shape in self.shapes)
        return Element(self.names, self.example, self.leaves, shapes, self.dtypes, accepted)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """The rows of a batch that any device of this process needs of any leaf, in order.

        Raises:
          InvalidMesh: if none of the devices is of this process.
        """
        return tuple(sorted({row for rows in self._leaf_rows for row in rows}))

    def placed(self, arrays: Sequence[np.ndarray[Any, Any]]) -> tuple[Any, ...]:
        """The arguments as global arrays, from these `rows` of each leaf."""
        parts = [
            array if len(rows) == len(self.rows) else array[np.searchsorted(self.rows, rows)]
            for array, rows in zip(arrays, self._leaf_rows, strict=True)
        ]
        leaves = untyped_jax.make_array_from_process_local_data(
            list(self.shardings), parts, list(self.shapes)
        )
        tree = untyped_jax.tree_util.tree_structure(self.example)
        return untyped_jax.tree_util.tree_unflatten(tree, leaves)

    @cached_property
    def _leaf_rows(self) -> tuple[tuple[int, ...], ...]:
        """For each leaf the rows of it that the devices of this process hold, in order."""
        return tuple(
            _rows_here(shape, sharding)
            for shape, sharding in zip(self.shapes, self.shardings, strict=True)
        )


def _batch(leaves: Mapping[str, Any]) -> int:
    """The number of rows of a batch, from the abstract values of its leaves by their names."""
    for leaf, aval in leaves.items():
        if is_key_dtype(aval.dtype):
            raise DataError(f"loader: {leaf} is a PRNG key, which no source has: pass it")

    rows = {aval.shape[:1] for aval in leaves.values()}
    if len(rows) != 1 or () in rows:
        shown = ", ".join(f"{leaf} {list(aval.shape)}" for leaf, aval in leaves.items())
        raise DataError(
            f"loader: what a batch fills has to have as many rows in every array, in its first dim; the plan has "
            f"{shown or 'no arrays'}"
        )
    ((batch,),) = rows
    return batch


def plan_of(planned: Compiled | Plan, names: Sequence[str]) -> Plan:
    """The plan that batches are for: of a compiled function the only one that was made.

    Raises:
      SignatureMismatch: none was made, or several.
    """
    if isinstance(planned, Plan):
        return planned

    match planned.made:
        case (plan,):
            return plan
        case ():
            raise SignatureMismatch(
                f"loader: {getattr(planned, '__name__', 'the function')} was not planned yet, so where "
                f"{', '.join(names)} lies is not known. Ask for its plan before: step.plan(...), with "
                f"jax.ShapeDtypeStructs"
            )
        case several:
            raise SignatureMismatch(
                f"loader: {len(several)} plans were made, for different shapes: pass the one that batches are for, "
                f"from step.plan(...)"
            )


def _rows_here(shape: tuple[int, ...], sharding: Any) -> tuple[int, ...]:
    indices = sharding.addressable_devices_indices_map(shape).values()
    stretches: set[tuple[int, int]] = {index[0].indices(shape[0])[:2] for index in indices}
    if not stretches:
        raise InvalidMesh(
            f"process {this_process()} has none of the plan's devices: make loaders in those that have"
        )
    return tuple(row for start, stop in sorted(stretches) for row in range(start, stop))


def _slot(plan: Plan, name: str) -> Slot:
    """A whole argument, or one array in it, such as batch['x']."""
    inputs = plan.bound.traced.graph.inputs[: plan.bound.traced.in_tree.num_leaves]
    for position, tensor in enumerate(inputs):
        if tensor.name == name:
            aval = plan.bound.traced.input_avals[position]
            tree = untyped_jax.tree_util.tree_structure(0)
            return Slot(name, tree, ("",), ((aval.shape, str(aval.dtype)),), (position,))
    return slot_of(plan.bound, name)


def _is_taken(wide: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    return jax.dtypes.canonicalize_dtype(wide) == dtype
