"""Layout: the tree of the parameters, and which rows of which of them lie on which server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autopar.errors import GradientMismatch, UnknownParameter
from autopar.parameter_server.cluster import answer
from autopar.parameter_server.names import by_name, filled
from autopar.parameter_server.sharding import Shard
from autopar.parameter_server.store import Rows, check_alike

Array = np.ndarray[Any, Any]
LATEST = 0
"""A version that servers have always reached."""


@dataclass(frozen=True)
class Touched:
    """The rows of a table that a batch reads: their numbers, ascending, and how many places there are for them.

    One place at least is free: it holds ones, which nothing may read.
    """

    ids: Array
    places: int


@dataclass(frozen=True)
class Layout:
    """What a worker has to know.

    Attributes:
      names: the tree of the parameters, with names for leaves.
      shapes: shape and type by name.
      shards: those of each server.
      tables: where the row numbers of each table are in a batch.
      patience_s: how long a worker may be silent.
    """

    names: Any
    shapes: Mapping[str, Any]
    shards: tuple[tuple[Shard, ...], ...]
    tables: Mapping[str, tuple[str, ...]]
    patience_s: float

    def wanted(self, touched: Mapping[str, Touched]) -> list[dict[str, Array | None]]:
        """What to pull from each server: whole shards (None), or the rows touched of them."""
        return [
            {
                shard.key: _within(touched[shard.name].ids, shard)
                if shard.name in touched
                else None
                for shard in shards
            }
            for shards in self.shards
        ]

    def tree(self, pulled: Sequence[Mapping[str, Array]], touched: Mapping[str, Touched]) -> Any:
        """The parameters as the job's tree, of what each server gave; of tables the rows touched, then ones."""
        found = {key: value for shards in pulled for key, value in shards.items()}
        return filled(self.names, {name: self._leaf(name, found, touched) for name in self.shapes})

    def split(
        self, gradients: Any, touched: Mapping[str, Touched]
    ) -> list[dict[str, Array | Rows]]:
        """What to push to each server of a tree of gradients.

        Raises:
          UnknownParameter: gradients of parameters that the job has not, or some are missing.
          GradientMismatch: of another shape or type, or of rows that the batch does not name.
        """
        named = {name: np.asarray(leaf) for name, leaf in by_name(gradients).items()}
        for name in (*(set(named) - set(self.shapes)), *(set(self.shapes) - set(named))):
            what = "is a gradient of no parameter" if name in named else "has no gradient"
            raise UnknownParameter(f"{name!r} {what}; the parameters are {', '.join(self.shapes)}")
        found = {name: self._gradient(name, value, touched) for name, value in named.items()}
        return [{shard.key: _part(found[shard.name], shard) for shard in s} for s in self.shards]

    def touched(self, batch: Any) -> dict[str, Touched]:
        """The rows of each table that a batch reads.

        Raises:
          UnknownParameter: the batch has no such leaf, or a number is that of no row.
        """
        leaves = by_name(batch)
        return {table: self._touched(table, leaves) for table in self.tables}

    def _leaf(
        self, name: str, pulled: Mapping[str, Array], touched: Mapping[str, Touched]
    ) -> Array:
        shards = sorted(shard for shards in self.shards for shard in shards if shard.name == name)
        parts = [pulled[shard.key] for shard in shards]
        if name in touched:
            shape = self.shapes[name]
            free = touched[name].places - len(touched[name].ids)
            parts.append(np.ones((free, *shape.shape[1:]), shape.dtype))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _gradient(self, name: str, value: Array, touched: Mapping[str, Touched]) -> Array | Rows:
        if name in touched:
            return _rows_of(name, value, touched[name])
        check_alike(name, self.shapes[name], value)
        return Rows(np.arange(len(value)), value) if name in self.tables else value

    def _touched(self, table: str, leaves: Mapping[str, Any]) -> Touched:
        rows = self.shapes[table].shape[0]
        names = self.tables[table]
        missing = [name for name in names if name not in leaves]
        if missing:
            raise UnknownParameter(
                f"the row numbers of table {table!r} are in {missing[0]!r} of a batch, which has {', '.join(leaves)}"
            )

        every = [np.ravel(np.asarray(leaves[name])) for name in names]
        ids = np.unique(np.concatenate(every))
        if len(ids) and not (ids[0] >= 0 and ids[-1] < rows):
            raise UnknownParameter(
                f"{' and '.join(names)} of the batch name rows {ids[0]} to {ids[-1]} of table {table!r}, which has "
                f"rows 0 to {rows - 1}"
            )
        return Touched(ids, min(rows, sum(map(len, every))) + 1)


def read(scheduler: Any) -> Any:
    """The parameters as they are now on the servers, as the job's tree."""
    layout, servers, generation = answer(scheduler.layout.remote())
    calls = [
        server.pull.remote(generation, LATEST, wanted)
        for server, wanted in zip(servers, layout.wanted({}), strict=True)
    ]
    return layout.tree([answer(call) for call in calls], {})


def _within(ids: Array, shard: Shard) -> Array:
    """Those of the ids that are rows of the shard, counted from its first."""
    first, last = np.searchsorted(ids, [shard.start, shard.stop])
    return ids[first:last] - shard.start


def _rows_of(name: str, gradient: Array, touched: Touched) -> Rows:
    """The gradient of the touched rows.

    Raises:
      GradientMismatch: the loss reads more of the table than rows by number.
    """
    count = len(touched.ids)
    if np.any(gradient[count:]):
        raise GradientMismatch(
            f"the loss reads rows of table {name!r} that its batch does not name, as a product with the whole table "
            "does: leave it out of Job.tables, then it travels whole"
        )
    return Rows(touched.ids, gradient[:count])


def _part(gradient: Array | Rows, shard: Shard) -> Array | Rows:
    if isinstance(gradient, Rows):
        first, last = np.searchsorted(gradient.ids, [shard.start, shard.stop])
        return Rows(gradient.ids[first:last] - shard.start, gradient.values[first:last])
    return gradient[shard.start : shard.stop] if gradient.ndim else gradient
