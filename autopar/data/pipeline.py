"""Pipeline: grain datasets of the rows that one process reads, as batches of these."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grain

from autopar.data.order import Order
from autopar.data.reading import Reading
from autopar.data.source import Element
from autopar.errors import DataError

untyped_grain: Any = grain  # its annotations are partial
_transforms = untyped_grain.transforms
_MAPS = (_transforms.Map, _transforms.RandomMap, _transforms.MapWithIndex)


@dataclass(frozen=True)
class Stream:
    """Elements by their position in the endless stream of epochs: shuffled, mapped, checked; as arrays of the plan."""

    rows: int
    elements: Any

    @classmethod
    def of(
        cls, source: Any, *, shuffle: bool, seed: int, transforms: Sequence[Any], element: Element
    ) -> Stream:
        """The stream of `source`.

        Raises:
          DataError: the source is none, is endless, or a transform does not give one element for each.
        """
        data = _dataset(source).seed(seed)
        rows = len(data)
        if rows >= sys.maxsize:
            raise DataError(
                "loader: the source has no end. Pass it without repeat(): epochs= says how often its rows come"
            )

        if shuffle and rows:
            data = data.shuffle(seed=seed)
        data = data.repeat() if rows else data

        for transform in transforms:
            data = _applied(data, transform)
        return cls(rows, data.map(element.arrays))

    def batches(
        self,
        order: Order,
        position: int,
        rows: Sequence[int],
        reading: Reading,
        placed: Callable[[Any], Any],
        depth: int,
    ) -> Any:
        """An iterator over batches from a position on: `rows` of each, made as `reading` says and then `placed`.

        Up to `depth` placed ones are ready, made by a thread; 0: placed when asked for.
        """
        own: Any = _OwnRows(self.elements, order, position, tuple(rows))
        ahead = reading.buffer if reading.threads else 0
        made = own.batch(len(rows)).to_iter_dataset(
            read_options=untyped_grain.ReadOptions(reading.threads, ahead)
        )
        if reading.workers:
            made = made.mp_prefetch(
                untyped_grain.MultiprocessingOptions(reading.workers, reading.buffer)
            )

        there = made.map(placed)
        return iter(
            untyped_grain.experimental.ThreadPrefetchIterDataset(there, prefetch_buffer_size=depth)
        )


class _OwnRows(untyped_grain.MapDataset):
    """The elements at `rows` of each batch from a position of the stream on, in order."""

    def __init__(self, stream: Any, order: Order, position: int, rows: tuple[int, ...]) -> None:
        untyped_grain.MapDataset.__init__(self, stream)
        self._order = order
        self._position = position
        self._rows = rows

    def __len__(self) -> int:
        batches = self._order.batches(self._position)
        most = sys.maxsize // len(self._rows)
        return (most if batches is None else batches) * len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        batch, row = divmod(index, len(self._rows))
        return self.parents[0][self._order.start(self._position, batch) + self._rows[row]]


def _dataset(source: object) -> Any:
    """`source` as a dataset of grain."""
    if isinstance(source, untyped_grain.MapDataset):
        return source
    kind = type(source)
    is_rows = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    if not is_rows or issubclass(kind, dict | tuple | str):
        raise DataError(
            f"loader: the source is a {kind.__qualname__}: pass what has len(source) and source[i], row by "
            f"row, such as grain.sources or a grain.MapDataset; arrays as autopar.data.Rows({{'x': ..., 'y': ...}})"
        )
    return untyped_grain.MapDataset.source(source)


def _applied(data: Any, transform: Any) -> Any:
    if isinstance(transform, _MAPS):
        return data.apply(transform)
    if callable(transform):
        return data.map(transform)
    raise DataError(
        f"loader: transforms has {transform!r}: pass functions of an element, or grain.transforms.Map, RandomMap or "
        f"MapWithIndex. What drops, adds or groups elements would change the rows of later batches: do so in the "
        f"source."
    )
