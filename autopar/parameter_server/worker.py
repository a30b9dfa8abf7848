"""A worker: pulls parameters, has autopar compute gradients on its own devices, pushes them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import numpy as np

from autopar._compat import untyped_jax
from autopar.errors import GradientMismatch, ParameterServerError
from autopar.parameter_server.cluster import answer, joined, ray, scheduler_at
from autopar.parameter_server.layout import Layout, Touched
from autopar.parameter_server.names import by_name, filled, names_in
from autopar.parameter_server.records import Traffic, Turn

Array = np.ndarray[Any, Any]
BatchOf = Callable[[int, int, int], Any]
"""batch_of(step, index, count) -> part `index` of `count` of the batch of a step: a pytree of arrays[example, ...]."""
BEATS = 5
"""Signs of life in the time that a worker may be silent."""


class Worker:
    """One worker of a job; see `worker`, which makes it.

    `fit` does all. By hand: for every turn of `turns()`, `pull` the parameters and `push` gradients.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        found = answer(scheduler.layout.remote())
        self._layout: Layout = found[0]
        self._servers: list[Any] = found[1]
        self._number: int = answer(scheduler.join.remote())
        self._lost = -1
        self._over = Event()
        self.traffic = Traffic()
        self._beating = Thread(target=self._beat, daemon=True)
        self._beating.start()

    def fit(self, loss: Callable[..., Any], batch_of: BatchOf, **options: Any) -> None:
        """Takes part until all steps are done.

        Args:
          loss: loss(params, batch) -> mean over the batch's examples.
          batch_of: batch_of(step, index, count) -> this worker's part of a batch, a pytree of arrays[example, ...].
          **options: those of `autopar.compile`, for the gradient of the loss on this worker's devices.

        Raises:
          ParameterServerError: the job cannot go on.
          AutoparError: as `autopar.compile`.
        """
        from autopar.api.compiled import compile as compiled

        gradient: Callable[..., Any] = compiled(untyped_jax.value_and_grad(loss), **options)
        for turn in self.turns():
            batch = batch_of(turn.step, turn.index, turn.count)
            touched = self.touched(batch)
            params = self.pull(turn, touched)
            if params is None:
                continue
            value, gradients = gradient(params, self.renumbered(batch, touched))
            self.push(turn, gradients, _examples(batch), float(value), touched)

    def turns(self) -> Iterator[Turn]:
        """The steps that are this worker's, each once the scheduler says so; some come again after a server was lost.

        Raises:
          ParameterServerError: the job cannot go on.
        """
        while True:
            answered = self._ask("turn", self._number, self._lost)
            self._number = answered.worker
            self._servers = answered.servers
            if answered.is_over:
                return
            if answered.turn is not None:
                self._lost = -1
                yield answered.turn

    def pull(self, turn: Turn, touched: Mapping[str, Touched] | None = None) -> Any:
        """The parameters, as the tree that the job has; of tables the touched rows. None: a server was lost.

        Without `touched` tables come whole.
        """
        rows = touched or {}
        wanted = self._layout.wanted(rows)
        found = self._on_servers(
            turn,
            [
                server.pull.remote(turn.generation, turn.version, mine)
                for server, mine in zip(self._servers, wanted, strict=True)
            ],
        )
        if found is None:
            return None

        self.traffic += Traffic(pulled_bytes=sum(_bytes(one) for one in (*wanted, *found)))
        return self._layout.tree(found, rows)

    def push(
        self,
        turn: Turn,
        gradients: Any,
        examples: int,
        loss: float,
        touched: Mapping[str, Touched] | None = None,
    ) -> bool:
        """Gives the servers this turn's gradients, means over so many examples. False: a server was lost.

        Raises:
          UnknownParameter: gradients of parameters that the job has not, or some are missing.
          GradientMismatch: of another shape or type.
        """
        pushes = self._layout.split(gradients, touched or {})
        done = self._on_servers(
            turn,
            [
                server.push.remote(turn.generation, self._number, turn.step, mine)
                for server, mine in zip(self._servers, pushes, strict=True)
            ],
        )
        if done is None:
            return False

        self.traffic += Traffic(pushed_bytes=sum(map(_bytes, pushes)))
        self._ask("pushed", self._number, turn.generation, turn.step, examples, loss)
        return True

    def touched(self, batch: Any) -> dict[str, Touched]:
        """The rows of each table that a batch reads.

        Raises:
          UnknownParameter: the batch has no such leaf, or a number is that of no row.
        """
        return self._layout.touched(batch)

    def renumbered(self, batch: Any, touched: Mapping[str, Touched]) -> Any:
        """The batch, with the rows' places among those pulled for their numbers."""
        leaves = dict(by_name(batch))
        for table, names in self._layout.tables.items():
            for name in names:
                ids = np.asarray(leaves[name])
                leaves[name] = np.searchsorted(touched[table].ids, ids).astype(ids.dtype)
        return filled(names_in(batch), leaves)

    def close(self) -> None:
        """Leaves the job."""
        if not self._over.is_set():
            self._over.set()
            self._beating.join()
            self._ask("leave", self._number, self.traffic)

    # What it stands on ------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        # without Ray a call would start another
        while not self._over.wait(self._layout.patience_s / BEATS) and ray().is_initialized():
            self._scheduler.beat.remote(self._number)

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            return answer(getattr(self._scheduler, method).remote(*args))
        except ray().exceptions.RayActorError as error:
            raise ParameterServerError(
                "the scheduler is gone: start scheduler, servers and workers again; with the same folder they go on "
                "where the last checkpoint was"
            ) from error

    def _on_servers(self, turn: Turn, calls: list[Any]) -> list[Any] | None:
        """What all servers answer; None: one is gone, or they were restored."""
        try:
            found = [answer(call) for call in calls]
        except ray().exceptions.RayActorError:
            found = [None]
        if any(one is None or one is False for one in found):
            self._lost = turn.generation
            return None
        return found


@contextmanager
def worker(address: str, timeout_s: float = 60.0) -> Generator[Worker]:
    """While the context lasts this process is a worker of the job whose scheduler is at `host:port`.

    Raises:
      MissingExtra: Ray is not installed.
      InvalidJob: no address of this form.
      ParameterServerError: nothing answers there within `timeout_s`, or the job cannot start.
    """
    with joined(address, timeout_s):
        found = Worker(scheduler_at(address, timeout_s))
        try:
            yield found
        finally:
            found.close()


def _examples(batch: Any) -> int:
    leaves: list[Any] = untyped_jax.tree_util.tree_leaves(batch)
    if not leaves or not np.shape(leaves[0]):
        raise GradientMismatch("a batch must be arrays[example, ...]; batch_of gave none")
    return np.shape(leaves[0])[0]


def _bytes(arrays: Mapping[str, Any]) -> int:
    return sum(array.nbytes for array in arrays.values() if array is not None)
