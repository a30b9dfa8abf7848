"""Store: parameters and optimizer state of one server, as numbers; nothing here knows of Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from autopar._compat import untyped_jax
from autopar.errors import GradientMismatch, ParameterServerError, UnknownParameter
from autopar.parameter_server.optimizers import Optimizer, is_by_row, updated
from autopar.parameter_server.records import Part

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Rows:
    """Rows of a table: their numbers, each once, and their values."""

    ids: Array
    values: Array

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.ids.nbytes + self.values.nbytes


Gradients = Mapping[str, "Array | Rows"]
"""By the key of a shard: of a table its touched rows, numbered from the shard's first."""


class Store:
    """Shards with their optimizer's state.

    Of parameters updates make new arrays. Tables are changed in place, as an update touches few of their rows.
    """

    def __init__(self, part: Part, values: Mapping[str, Array]) -> None:
        keys = {shard.key: shard.name in part.tables for shard in part.shards}
        self._dense: dict[str, Any] = {
            key: values[key] for key, is_table in keys.items() if not is_table
        }
        self._state: Any = part.optimizer.init(self._dense)
        self._update = untyped_jax.jit(partial(updated, part.optimizer))
        self._tables = {
            key: Table(part.table_optimizer, values[key])
            for key, is_table in keys.items()
            if is_table
        }

    def read(self, wanted: Mapping[str, Array | None]) -> dict[str, Array]:
        """Shards by key: whole, or the rows with these numbers, counted from the shard's first.

        Raises:
          UnknownParameter: a shard or a row that is not here.
        """
        return {key: self._read(key, ids) for key, ids in wanted.items()}

    def check(self, gradients: Gradients) -> None:
        """Refuses gradients that are not those of the shards here.

        Raises:
          UnknownParameter: of a shard or of rows that are not here, or one is missing.
          GradientMismatch: of another shape or type.
        """
        mine = {*self._dense, *self._tables}
        if set(gradients) != mine:
            raise UnknownParameter(
                f"gradients of {sorted(gradients)}; this server holds {sorted(mine)}"
            )
        for key, gradient in gradients.items():
            if isinstance(gradient, Rows):
                self._tables[key].check(key, gradient)
            else:
                check_alike(key, self._dense[key], gradient)

    def apply(self, pushed: Sequence[tuple[Gradients, float]]) -> None:
        """One update by the mean of gradients with these shares."""
        if self._dense:
            mean = {key: _mean([(g[key], share) for g, share in pushed]) for key in self._dense}
            self._dense, self._state = self._update(mean, self._state, self._dense)
        for key, table in self._tables.items():
            table.apply(_mean_of_rows([(g[key], share) for g, share in pushed]))

    def arrays(self) -> dict[str, Array]:
        """All that is to be saved, by name; later updates do not change it."""
        found = {f"value {key}": np.asarray(value) for key, value in self._dense.items()}
        for n, leaf in enumerate(_leaves(self._state)):
            found[f"state {n}"] = np.asarray(leaf)
        for key, table in self._tables.items():
            found |= {f"{name} of {key}": array.copy() for name, array in table.arrays().items()}
        return found

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """As it was when `arrays` was made, by a store of the same part.

        Raises:
          ParameterServerError: they are of another part.
        """
        mine = {name: (array.shape, array.dtype) for name, array in self.arrays().items()}
        if mine != {name: (array.shape, array.dtype) for name, array in arrays.items()}:
            raise ParameterServerError(
                "a checkpoint is of another optimizer, or of parameters of other shapes, than this job's: take "
                "another folder"
            )
        self._dense = {key: arrays[f"value {key}"] for key in self._dense}
        tree = untyped_jax.tree_util.tree_structure(self._state)
        leaves = [arrays[f"state {n}"] for n in range(tree.num_leaves)]
        self._state = untyped_jax.tree_util.tree_unflatten(tree, leaves)
        for key, table in self._tables.items():
            table.restore({name: arrays[f"{name} of {key}"] for name in table.arrays()})

    def _read(self, key: str, ids: Array | None) -> Array:
        if key in self._tables:
            return self._tables[key].read(key, ids)
        if key not in self._dense:
            raise UnknownParameter(
                f"no shard {key!r}; this server holds {[*self._dense, *self._tables]}"
            )
        return np.asarray(self._dense[key])


class Table:
    """Rows and their optimizer's state, changed in place."""

    def __init__(self, optimizer: Optimizer, values: Array) -> None:
        self._values: Array = np.array(values)
        state: Any = optimizer.init(self._values)
        self._tree: Any = untyped_jax.tree_util.tree_structure(state)
        self._state: list[Array] = [np.array(leaf) for leaf in _leaves(state)]
        self._by_row = is_by_row(optimizer, values.shape, values.dtype)
        self._update: Callable[..., Any] = untyped_jax.jit(partial(updated, optimizer))

    def read(self, key: str, ids: Array | None) -> Array:
        """Rows by number, or all, as they are now."""
        if ids is None:
            return self._values.copy()
        self._check_ids(key, ids)
        return self._values[ids]

    def check(self, key: str, gradient: Rows) -> None:
        """Refuses the gradient of rows that are not there, or of another shape or type."""
        self._check_ids(key, gradient.ids)
        check_alike(key, self._values[: len(gradient.ids)], gradient.values)

    def apply(self, gradient: Rows) -> None:
        """Updates the rows that the gradient is of.

        They are padded to a power of two, so that few programs are compiled: by the first row, with a zero gradient,
        whose results are dropped.
        """
        count = len(gradient.ids)
        padding = (1 << max(0, count - 1).bit_length()) - count
        ids: Array = np.concatenate([gradient.ids, np.zeros(padding, gradient.ids.dtype)])
        values = np.concatenate(
            [gradient.values, np.zeros((padding, *self._values.shape[1:]), self._values.dtype)]
        )
        state = [
            leaf[ids] if per_row else leaf
            for leaf, per_row in zip(self._state, self._by_row, strict=True)
        ]
        rows, after = self._update(
            values, untyped_jax.tree_util.tree_unflatten(self._tree, state), self._values[ids]
        )

        self._values[gradient.ids] = np.asarray(rows)[:count]
        for leaf, new, per_row in zip(self._state, _leaves(after), self._by_row, strict=True):
            if per_row:
                leaf[gradient.ids] = np.asarray(new)[:count]
            else:
                leaf[...] = np.asarray(new)

    def arrays(self) -> dict[str, Array]:
        """The rows and each array of the state, not copied."""
        return {"rows": self._values} | {f"state {n}": leaf for n, leaf in enumerate(self._state)}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """As `arrays` gave it."""
        for name, mine in self.arrays().items():
            mine[...] = arrays[name]

    def _check_ids(self, key: str, ids: Array) -> None:
        rows = len(self._values)
        if len(ids) and not (ids.min() >= 0 and ids.max() < rows):
            raise UnknownParameter(
                f"rows {ids.min()} to {ids.max()} of {key}, which has {rows} rows"
            )


def check_alike(name: str, parameter: Array, gradient: Any) -> None:
    """Refuses a gradient that is not like its parameter.

    Raises:
      GradientMismatch: another shape or type.
    """
    mine = (tuple(parameter.shape), str(parameter.dtype))
    given = (tuple(np.shape(gradient)), str(getattr(gradient, "dtype", type(gradient).__name__)))
    if mine != given:
        raise GradientMismatch(
            f"the gradient of {name} is {given[1]}{list(given[0])}, the parameter {mine[1]}{list(mine[0])}: pass what "
            "jax.grad gives for these parameters"
        )


def _leaves(tree: Any) -> list[Any]:
    return untyped_jax.tree_util.tree_leaves(tree)


def _mean(gradients: Sequence[tuple[Any, float]]) -> Array:
    """Their sum, each times its share, added in float32 at least."""
    first, share = gradients[0]
    if len(gradients) == 1 and share == 1.0:
        return first
    wide = np.promote_types(first.dtype, np.float32)
    total = np.zeros(first.shape, wide)
    for gradient, part in gradients:
        total += np.asarray(gradient, wide) * wide.type(part)
    return total.astype(first.dtype)


def _mean_of_rows(gradients: Sequence[tuple[Any, float]]) -> Rows:
    """Of all rows that any of them touches."""
    ids, places = np.unique(np.concatenate([g.ids for g, _ in gradients]), return_inverse=True)
    first = gradients[0][0].values
    wide = np.promote_types(first.dtype, np.float32)
    total = np.zeros((len(ids), *first.shape[1:]), wide)
    scaled = [np.asarray(g.values, wide) * wide.type(share) for g, share in gradients]
    np.add.at(total, places, np.concatenate(scaled))
    return Rows(ids, total.astype(first.dtype))
