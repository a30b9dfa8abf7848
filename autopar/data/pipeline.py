"""Pipeline: grain datasets of the rows that one process reads, as batches of these."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import grain
from absl import flags

from autopar.data.order import Order
from autopar.data.reading import Reading
from autopar.data.source import Element
from autopar.data.tuning import Limits
from autopar.errors import DataError, InvalidOption

untyped_grain: Any = grain  # its annotations are partial
_experimental = untyped_grain.experimental
_transforms = untyped_grain.transforms
_MAPS = (_transforms.Map, _transforms.RandomMap, _transforms.MapWithIndex)

untyped_flags: Any = flags.FLAGS
_PROFILING = "grain_enable_multiprocess_worker_profiling"
_ENDLESS = 2**40
"""As many batches stand for no end; grain counts rows in 64 bits, and batches by floating point."""
_MEMORY_MB = 1024
"""What batches that wait on the host may take of its memory, where the reading is tuned."""
_MOST_AHEAD = 64


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


@dataclass(frozen=True)
class Batches:
    """The batches of a stream in their order: `rows` of each, those of this process, then `placed` on its devices.

    Placed ones are made ahead by a thread, `depth` of them; 0: when they are asked for.
    """

    stream: Stream
    order: Order
    rows: tuple[int, ...]
    placed: Callable[[Any], Any]
    depth: int

    def check(self) -> None:
        """Reads one element, so that one that differs from the arguments is told of before anything runs.

        Raises:
          DataError: it differs, or the source drops rows.
        """
        self._made(0)
        self.stream.elements[0]

    def opened(self, position: int, reading: Reading) -> Any:
        """An iterator over placed batches from a position on, made as `reading` says."""
        ahead = reading.buffer if reading.threads else 0
        batches = self._made(position).to_iter_dataset(
            read_options=untyped_grain.ReadOptions(reading.threads, ahead)
        )
        if reading.workers:
            _let_profiling_flag_be_read()
            batches = batches.mp_prefetch(
                untyped_grain.MultiprocessingOptions(reading.workers, reading.buffer)
            )

        there = batches.map(self.placed)
        return iter(_experimental.ThreadPrefetchIterDataset(there, prefetch_buffer_size=self.depth))

    def limits(self, position: int) -> Limits:
        """The workers that the machine has cores for, and the batches that memory has room for, as grain chooses."""
        batch = self._made(position)[0]
        chosen = _experimental.pick_performance_config(
            untyped_grain.MapDataset.source([batch]).to_iter_dataset(),
            ram_budget_mb=_MEMORY_MB,
            max_workers=None if is_guarded(sys.modules["__main__"]) else 0,
            max_buffer_size=_MOST_AHEAD,
            samples_to_check=1,
        )
        workers = chosen.multiprocessing_options.num_workers
        return Limits(workers, max(1, chosen.read_options.prefetch_buffer_size))

    def _made(self, position: int) -> Any:
        own: Any = _OwnRows(self.stream.elements, self.order, position, self.rows)
        try:
            return own.batch(len(self.rows))
        except ValueError as error:  # what grain says of a filter before a batch
            raise DataError(
                f"loader: the source drops or adds rows, which would change those of later batches ({error}). Pass a "
                f"source of what is left"
            ) from error


def check_workers(reading: Reading) -> None:
    """Whether the workers of `reading` can be started.

    Raises:
      InvalidOption: the script that runs would run in each of them too.
    """
    script = sys.modules["__main__"]
    if reading.workers and not is_guarded(script):
        raise InvalidOption(
            f"loader: each of {reading.workers} workers imports {script.__file__}, and would run it. Put what it does "
            f"under `if __name__ == '__main__':`, or read without workers"
        )


def _let_profiling_flag_be_read() -> None:
    """Grain 0.2.18 reads this flag of absl's in scripts too that parse none, where that fails (google/grain#1355)."""
    if _PROFILING in untyped_flags:
        untyped_flags[_PROFILING].present = True


def is_guarded(script: ModuleType) -> bool:
    """Whether processes can be started that import the script that runs: it asks for `__name__` before it acts.

    Prompts and notebooks have no file, and are not imported.
    """
    path = getattr(script, "__file__", None)
    if path is None:
        return True
    if not Path(path).is_file():
        return False
    body = ast.parse(Path(path).read_bytes()).body
    return any(isinstance(one, ast.If) and "__name__" in ast.unparse(one.test) for one in body)


class _OwnRows(untyped_grain.MapDataset):
    """The elements at `rows` of each batch from a position of the stream on, in order."""

    def __init__(self, stream: Any, order: Order, position: int, rows: tuple[int, ...]) -> None:
        untyped_grain.MapDataset.__init__(self, stream)
        self._order = order
        self._position = position
        self._rows = rows

    def __len__(self) -> int:
        batches = self._order.batches(self._position)
        return (_ENDLESS if batches is None else batches) * len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if type(index) is slice:
            return self.slice(index)
        batch: int = index // len(self._rows)
        row: int = index % len(self._rows)
        position = self._order.start(self._position, batch) + self._rows[row]
        (stream,) = cast("tuple[Any, ...]", self.parents)
        element = stream[position]
        if element is None:
            raise DataError(
                f"loader: element {position % self._order.rows} of the source is None: every row has to be there"
            )
        return element


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
