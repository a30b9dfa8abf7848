"""What is told between scheduler, servers and workers, and to users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autopar.errors import InvalidJob
from autopar.parameter_server.names import shapes_by_name
from autopar.parameter_server.optimizers import (
    Optimizer,
    check_dense,
    check_sparse,
    held_bytes,
)
from autopar.parameter_server.sharding import Leaf, Shard


@dataclass(frozen=True)
class Job:
    """What is trained on parameter servers, and by how many.

    Attributes:
      params: the initial parameters, a pytree of arrays; a server holds its shards of it.
      optimizer: of optax; each update of a parameter must depend on that parameter alone.
      steps: synchronous: updates; asynchronous: steps of each worker.
      servers: how many hold the parameters.
      workers: how many compute gradients; the first step waits for all of them.
      staleness: None: synchronous, an update is the mean over the examples of all workers. A number k: asynchronous,
        every worker's gradient is an update, and a worker begins a step only when all others have finished those that
        lie more than k before it.
      tables: parameters of which only touched rows travel, by name: where in a batch their row numbers are, as one name
        or several.
      table_optimizer: of the tables, if it is another one.
      folder: where checkpoints lie, which all servers and the scheduler see; None: none, then a lost server ends the
        job. What lies there already is continued.
      save_every: updates between two checkpoints.
      start_timeout_s: how long to wait for servers and workers that have not come.
      patience_s: how long a worker may be silent before the others go on without it.
    """

    params: Any
    optimizer: Optimizer
    steps: int
    servers: int = 1
    workers: int = 1
    staleness: int | None = None
    tables: Mapping[str, str | Sequence[str]] = field(default_factory=dict[str, Any])
    table_optimizer: Optimizer | None = None
    folder: str | Path | None = None
    save_every: int = 100
    start_timeout_s: float = 120.0
    patience_s: float = 10.0

    def __post_init__(self) -> None:
        for name, least in (("steps", 0), ("servers", 1), ("workers", 1), ("save_every", 1)):
            value = getattr(self, name)
            if value < least:
                raise InvalidJob(f"Job: {name} is {value}, it must be at least {least}")
        if self.staleness is not None and self.staleness < 0:
            raise InvalidJob(
                f"Job: staleness is {self.staleness}; it must be None, for synchronous steps, or at least 0"
            )
        self._check_tables(shapes_by_name(self.params))

    def _check_tables(self, params: Mapping[str, Any]) -> None:
        if not params:
            raise InvalidJob("Job: params holds no array")
        for name in self.tables:
            if name not in params:
                raise InvalidJob(
                    f"Job: tables names {name!r}; the parameters are {', '.join(params)}"
                )
            if not params[name].shape:
                raise InvalidJob(f"Job: tables names {name!r}, a scalar; a table has rows")

    @property
    def optimizer_of_tables(self) -> Optimizer:
        """The optimizer of the tables."""
        return self.table_optimizer or self.optimizer

    def ids_in_batch(self, table: str) -> tuple[str, ...]:
        """The names, in a batch, of the row numbers of a table."""
        ids = self.tables[table]
        return (ids,) if isinstance(ids, str) else tuple(ids)

    def leaves(self) -> tuple[Leaf, ...]:
        """The parameters as they are placed on servers.

        Raises:
          UnsuitableOptimizer: the optimizer of the parameters, or of the tables, cannot run on servers.
        """
        may_cut = check_dense(self.optimizer)
        if self.tables:
            check_sparse(self.optimizer_of_tables)
        found: list[Leaf] = []

        for name, aval in shapes_by_name(self.params).items():
            is_table = name in self.tables
            optimizer = self.optimizer_of_tables if is_table else self.optimizer
            held = held_bytes(optimizer, aval.shape, aval.dtype)
            found.append(Leaf(name, aval.shape, str(aval.dtype), held, may_cut or is_table))

        return tuple(found)


@dataclass(frozen=True)
class Turn:
    """What a worker does next: step `step`, on part `index` of `count` of its batch.

    `version` updates have been made; `generation` counts how often the servers were restored.
    """

    step: int
    index: int
    count: int
    version: int
    generation: int


@dataclass(frozen=True)
class Commit:
    """Update number `version`: the gradients that make it, as (worker, step) with the share of each.

    What a server holds of workers that are not `live` is dropped. `saves`: a checkpoint follows.
    """

    version: int
    shares: tuple[tuple[tuple[int, int], float], ...]
    live: frozenset[int]
    saves: bool


@dataclass(frozen=True)
class Update:
    """What is kept of an update: its number, the workers whose gradients it is of, and their mean loss.

    `lead`: how many steps the worker that was ahead had begun before the slowest one had finished as many.
    """

    version: int
    workers: tuple[int, ...]
    loss: float
    lead: int


@dataclass(frozen=True)
class Traffic:
    """Bytes of parameters and gradients that a worker pulled and pushed, row numbers included."""

    pulled_bytes: int = 0
    pushed_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.pulled_bytes + other.pulled_bytes, self.pushed_bytes + other.pushed_bytes
        )


@dataclass(frozen=True)
class Restore:
    """A server was lost after `lost_at` updates; all were restored as they had been after `version`.

    `unreadable`: why later checkpoints could not be taken; "" if the latest was.
    """

    lost_at: int
    version: int
    unreadable: str


@dataclass(frozen=True)
class Result:
    """What a job made.

    Attributes:
      params: the parameters after the last update.
      updates: every update that counts, in order; of a continued job those since then.
      traffic: bytes of all workers that finished.
      restores: how often, and to where, servers were restored.
    """

    params: Any
    updates: tuple[Update, ...]
    traffic: Traffic
    restores: tuple[Restore, ...]


@dataclass(frozen=True)
class Part:
    """What one server holds: its shards, which of them are of tables, and the optimizers."""

    shards: tuple[Shard, ...]
    tables: frozenset[str]
    optimizer: Optimizer
    table_optimizer: Optimizer


@dataclass(frozen=True)
class Saved:
    """A checkpoint: after how many updates, and how many steps each worker had finished."""

    version: int
    clocks: Mapping[int, int]
