"""Jobs as a whole: scheduler, servers and workers started by one call, or each by hand and found at an address."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autopar.emit.measure import use_virtual_devices
from autopar.errors import ParameterServerError
from autopar.parameter_server.cluster import (
    SCHEDULER,
    answer,
    head,
    joined,
    local,
    ray,
    scheduler_at,
)
from autopar.parameter_server.layout import read
from autopar.parameter_server.records import Job, Result, Update
from autopar.parameter_server.scheduler import Scheduler
from autopar.parameter_server.server import Server
from autopar.parameter_server.worker import BatchOf, Worker

WITHOUT_CPU = {"num_cpus": 0}
"""Scheduler and servers wait most of the time, so Ray need not set cores aside for them."""


@dataclass(frozen=True)
class Running:
    """A job that runs, with the actors that were started with it."""

    scheduler: Any
    servers: Sequence[Any] = ()
    workers: Sequence[Any] = ()
    ends: Sequence[Any] = ()

    def updates(self) -> tuple[Update, ...]:
        """The updates so far."""
        return answer(self.scheduler.updates.remote())

    def result(self) -> Result:
        """What the job made, once it has ended.

        Raises:
          ParameterServerError: it could not go on.
          Exception: what the loss or the data of a worker raised that was started with the job.
        """
        ended = self.scheduler.outcome.remote()
        waits = [ended, *self.ends]
        while ended in waits:
            done, waits = ray().wait(waits, num_returns=1)
            for reference in done:
                self._note(reference)

        traffic, restores = answer(ended)
        return Result(read(self.scheduler), self.updates(), traffic, restores)

    def _note(self, reference: Any) -> None:
        """What has ended: raises what it raised, but not that a worker's process is gone, which costs its step only."""
        try:
            answer(reference)
        except ray().exceptions.RayActorError as error:
            if reference not in self.ends:
                raise ParameterServerError(
                    f"the process of the scheduler is gone: {error}"
                ) from error


class WorkerActor:
    """A worker in a process of its own, with virtual devices if that is asked for."""

    def __init__(self, scheduler: Any, devices: int | None) -> None:
        if devices is not None:
            use_virtual_devices(devices)
        self._scheduler = scheduler

    def fit(self, loss: Callable[..., Any], batch_of: BatchOf, options: Mapping[str, Any]) -> None:
        """Takes part until all steps are done."""
        worker = Worker(self._scheduler)
        try:
            worker.fit(loss, batch_of, **options)
        finally:
            worker.close()


def train(job: Job, loss: Callable[..., Any], batch_of: BatchOf, **options: Any) -> Result:
    """What the job made, by a scheduler, servers and workers that are started for it and end with it.

    Args:
      job: what is trained.
      loss: loss(params, batch) -> mean over the batch's examples.
      batch_of: batch_of(step, index, count) -> part `index` of `count` of the batch of a step, a pytree of
        arrays[example, ...].
      **options: those of `started`.

    Raises:
      MissingExtra: Ray is not installed.
      ParameterServerError: the job cannot start or go on.
      Exception: what `loss` or `batch_of` raised.
    """
    with started(job, loss, batch_of, **options) as running:
        return running.result()


@contextmanager
def started(
    job: Job,
    loss: Callable[..., Any],
    batch_of: BatchOf,
    *,
    devices: int | None = None,
    memory_limit_bytes: int | None = None,
    resources: Mapping[str, Any] | None = None,
    **options: Any,
) -> Generator[Running]:
    """A job that runs, as `train` has it, on the Ray that this process has joined, or else on one for it alone.

    Args:
      job: what is trained.
      loss: as in `train`.
      batch_of: as in `train`.
      devices: virtual CPU devices of each worker; None: the devices that its process has.
      memory_limit_bytes: what each server may hold; None: all that comes.
      resources: what Ray sets aside for each worker, as in `ray.remote`: {"num_gpus": 1}.
      **options: those of `autopar.compile`, for the gradient of the loss.
    """
    with local():
        library = ray()
        scheduler = start_scheduler(job)
        servers = [start_server() for _ in range(job.servers)]
        workers = [
            library.remote(**(resources or WITHOUT_CPU))(WorkerActor).remote(scheduler, devices)
            for _ in range(job.workers)
        ]
        try:
            for server in servers:
                answer(scheduler.join_server.remote(server, memory_limit_bytes))
            ends = [worker.fit.remote(loss, batch_of, options) for worker in workers]
            yield Running(scheduler, servers, workers, ends)
        finally:
            for actor in (*workers, *servers, scheduler):
                library.kill(actor)


def run_scheduler(job: Job, address: str) -> Result:
    """What the job made: this process starts Ray at `host:port`, and servers and workers find the job there.

    Raises:
      MissingExtra: Ray is not installed.
      InvalidJob: no address of this form, or something listens there.
      ParameterServerError: the job cannot start or go on.
    """
    with head(address, job.start_timeout_s):
        scheduler = start_scheduler(job, name=SCHEDULER)
        try:
            return Running(scheduler).result()
        finally:
            answer(scheduler.release.remote())


def run_server(
    address: str, memory_limit_bytes: int | None = None, timeout_s: float = 60.0
) -> None:
    """Serves the job whose scheduler is at `host:port` until it is over.

    Args:
      address: where the scheduler is.
      memory_limit_bytes: what this server may hold; None: all that comes.
      timeout_s: how long to wait for the scheduler.

    Raises:
      MissingExtra: Ray is not installed.
      InvalidJob: no address of this form.
      ParameterServerError: nothing answers there, the job has all its servers, or it cannot go on.
    """
    with joined(address, timeout_s):
        scheduler = scheduler_at(address, timeout_s)
        library = ray()
        here = library.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            library.get_runtime_context().get_node_id(), soft=False
        )
        server = start_server(scheduling_strategy=here)
        answer(scheduler.join_server.remote(server, memory_limit_bytes))
        answer(scheduler.released.remote())


def start_scheduler(job: Job, **options: Any) -> Any:
    """The actor of a scheduler, which waits for servers and workers; `options` as of `ray.remote`."""
    if job.folder is not None:  # other processes may be in other directories
        job = replace(job, folder=Path(job.folder).resolve())
    scheduler = ray().remote(**WITHOUT_CPU, **options)(Scheduler).remote(job)
    answer(scheduler.start.remote())
    return scheduler


def start_server(**options: Any) -> Any:
    """The actor of a server, which Ray starts again if its process ends."""
    return ray().remote(**WITHOUT_CPU, max_restarts=-1, **options)(Server).remote()
