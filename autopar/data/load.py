"""Loader: batches of a source as global arrays, in the placements that a plan has for its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import finalize

from autopar.api.compiled import Compiled
from autopar.api.plan import Plan
from autopar.data.arguments import Arguments, plan_of
from autopar.data.order import AtEnd, Order
from autopar.data.reading import Reading
from autopar.data.tuning import FIRST, Limits, Tuner
from autopar.data.waits import Waits
from autopar.emit.several import gathered, spans_processes
from autopar.errors import DataError, DifferentValues, InvalidOption, of_extra

if TYPE_CHECKING:
    from autopar.data.pipeline import Batches


def loader(
    source: Any,
    planned: Compiled | Plan,
    *names: str,
    shuffle: bool = False,
    seed: int = 0,
    epochs: int | None = None,
    at_end: AtEnd = "wrap",
    transforms: Sequence[Any] = (),
    reading: Reading | None = None,
    depth: int = 2,
) -> Loader:
    """Batches of `source` as arguments of a plan, in its placements: `for batch in loader: step(state, *batch)`.

    Each process reads the rows that its devices need, and no others; processes that hold the same rows read the same.
    The rows of a batch, and their order, are the same on any number of processes. For all processes of the plan's
    devices to call, alike.

    Args:
      source: what has `len(source)` and `source[i]`, as those of `grain.sources`; a `grain.MapDataset`; or `Rows`.
      planned: a plan, or a compiled function that was planned once.
      *names: the arguments that batches fill, as the plan prints them: "images", a pytree "batch", or "batch['x']". An
        element is a dict by these names, a tuple in their order, or, for one name, the argument itself; without the
        first dim, which counts the rows of a batch.
      shuffle: whether the rows of each epoch come in an order of its own, by `seed`.
      seed: of that order, and of random maps.
      epochs: how often the source is read; None: without end.
      at_end: "wrap": a batch that the end of the source cuts goes on with the next epoch. "drop": it is left out.
      transforms: functions of an element, and `grain.transforms.Map`, `RandomMap`, `MapWithIndex`, in order.
      reading: how batches are made; None: by what is measured while the loop runs.
      depth: how many global arrays of each argument are made ahead, while the step runs.

    Raises:
      DataError: a source shorter than a batch, or whose elements differ from the arguments; names what differs.
      SignatureMismatch: the plan has no such argument, or the function was not planned, or several times.
      DifferentValues: the processes were given different sources or options.
      InvalidOption: an option that makes no sense.
      MissingExtra: grain is not installed.
    """
    with of_extra("train", "autopar.data reads by grain"):
        from autopar.data import pipeline  # late: grain is an extra

    _check_options(epochs, at_end, depth, seed)
    pipeline.check_workers(reading or FIRST)
    plan = plan_of(planned, names)
    arguments = Arguments.of(plan, names)
    element = arguments.element()
    stream = pipeline.Stream.of(
        source, shuffle=shuffle, seed=seed, transforms=transforms, element=element
    )

    if stream.rows < arguments.batch:
        raise DataError(
            f"loader: the source has {stream.rows} rows, a batch of {', '.join(names)} has {arguments.batch}. Plan for "
            f"smaller batches, or repeat the rows in the source."
        )

    order = Order(stream.rows, arguments.batch, epochs, at_end)
    _check_alike(f"{order}, shuffle={shuffle}, seed={seed}", plan)
    batches = pipeline.Batches(stream, order, arguments.rows, arguments.placed, depth)
    batches.check()
    return Loader(arguments.names, batches, Shuffled(shuffle, seed), reading)


@dataclass(frozen=True)
class Shuffled:
    """Whether rows are shuffled, and by which seed."""

    shuffle: bool
    seed: int


class Loader:
    """An iterator over batches, each a tuple of the arguments `names`, as global arrays; made by `loader`.

    It has a position, which `get_state` tells and `set_state` changes; `waits` are those of its loop so far, `reading`
    is how batches are made. To be closed at the end, or used in a `with`: threads and processes may be making some
    ahead.
    """

    def __init__(
        self, names: tuple[str, ...], batches: Batches, shuffled: Shuffled, reading: Reading | None
    ) -> None:
        self.names = names
        self.reading = reading or FIRST
        self.waits = Waits()
        self._batches = batches
        self._order = batches.order
        self._shuffled = shuffled
        self._tuner = Tuner(self._limits, batches.depth) if reading is None else None
        self._position = 0
        self._opened: list[Any] = []  # the iterator over batches, if there is one
        finalize(self, _close, self._opened)  # as the process ends, while what closes it is there
        self._given_at: float | None = None

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        asked_at = perf_counter()
        if self.batches_left == 0:
            raise StopIteration
        if not self._opened:
            self._opened.append(self._batches.opened(self._position, self.reading))

        try:
            batch = next(self._opened[0])
        except BaseException:
            self.close()  # the next call begins where this one failed
            raise

        self._position = self._order.start(self._position, 1)
        self._count(asked_at, perf_counter())
        return batch

    @property
    def batch_size(self) -> int:
        """The number of rows of a batch."""
        return self._order.batch

    @property
    def batches_left(self) -> int | None:
        """How many batches are to come; None for no end."""
        return self._order.batches(self._position)

    @property
    def is_tuned(self) -> bool:
        """Whether `reading` stays as it is: it was given, or tuning has ended."""
        return self._tuner is None or self._tuner.is_done

    @property
    def epoch(self) -> float:
        """How often the source was read so far."""
        return self._position / self._order.rows

    def get_state(self) -> dict[str, int | bool]:
        """The position behind the last batch that was given out, as JSON can hold it.

        It is the same in all processes, and fits loaders on any number of them, with any plan and size of batches.
        """
        return {"position": self._position, "rows": self._order.rows, **asdict(self._shuffled)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on at a position that `get_state` told; what was made ahead is dropped.

        Raises:
          DataError: it is no such state, or of a source of other rows, or in another order.
        """
        own = self.get_state()
        position: object = state.get("position")
        if state.keys() != own.keys() or not isinstance(position, int) or position < 0:
            raise DataError(f"set_state: {state!r} is no state of a loader, such as {own!r}")

        differing = [
            f"{key} {state[key]!r}, here {own[key]!r}"
            for key in ("rows", "shuffle", "seed")
            if state[key] != own[key]
        ]
        if differing:
            raise DataError(
                f"set_state: the position is of other data: {', '.join(differing)}. Make the loader with the source "
                f"and options that it was saved with."
            )

        self.close()
        self._position = position

    def close(self) -> None:
        """Ends the threads and processes that make batches; the next batch, if asked for, starts them anew."""
        self._given_at = None
        _close(self._opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _count(self, asked_at: float, given_at: float) -> None:
        busy_s = 0.0 if self._given_at is None else asked_at - self._given_at
        step = Waits(1, given_at - asked_at, busy_s)
        self._given_at = given_at
        self.waits = self.waits + step

        if self._tuner is not None and self._tuner.sees(step):
            self.close()
            self.reading = self._tuner.reading

    def _limits(self) -> Limits:
        return self._batches.limits(self._position)


def _close(opened: list[Any]) -> None:
    while opened:
        opened.pop().close()


def _check_options(epochs: object, at_end: str, depth: object, seed: object) -> None:
    if epochs is not None and not _is_whole(epochs, 1):
        raise InvalidOption(
            f"loader: epochs is {epochs!r}: pass a whole number >= 1, or None for no end"
        )
    if at_end not in ("wrap", "drop"):
        raise InvalidOption(f"loader: at_end is {at_end!r}: pass 'wrap' or 'drop'")
    if not _is_whole(depth, 0):
        raise InvalidOption(f"loader: depth is {depth!r}: pass a whole number >= 0")
    if not _is_whole(seed, 0, 2**32 - 1):
        raise InvalidOption(f"loader: seed is {seed!r}: pass a whole number from 0 to 2**32 - 1")


def _is_whole(value: object, least: int, most: float = inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _check_alike(given: str, plan: Plan) -> None:
    """Whether all processes make the same loader; the same error in all of them.

    Raises:
      DifferentValues: if not.
    """
    devices = tuple(plan.jax_mesh().devices.flat)
    if not spans_processes(devices):
        return

    told = [row.decode() for row in gathered(given.encode(), devices)]
    processes = sorted({device.process_index for device in devices})
    for process, other in zip(processes, told, strict=True):
        if other != told[0]:
            raise DifferentValues(
                f"loader: processes {processes[0]} and {process} read other rows: {told[0]} / {other}. Call it with "
                f"the same source and options in all."
            )
