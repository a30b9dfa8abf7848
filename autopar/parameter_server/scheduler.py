"""The scheduler: a Ray actor that knows who is there, whose turn it is, and which gradients make an update."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from autopar.emit.measure import use_virtual_devices
from autopar.errors import AutoparError, ParameterServerError
from autopar.parameter_server.checkpoints import Manifest
from autopar.parameter_server.cluster import ray
from autopar.parameter_server.layout import Layout
from autopar.parameter_server.names import by_name, names_in, shapes_by_name
from autopar.parameter_server.progress import Progress, Push
from autopar.parameter_server.records import (
    Commit,
    Job,
    Part,
    Restore,
    Saved,
    Traffic,
    Turn,
    Update,
)
from autopar.parameter_server.server import Place
from autopar.parameter_server.sharding import Shard, place

Array = np.ndarray[Any, Any]
TICK_S = 0.25
"""Between two looks at who is there."""
RUNNING = ("runs", "restores")
GRACE_S = 0.5
"""For the last answers to arrive, before the process that asked for the end takes Ray with it."""


@dataclass(frozen=True)
class Answer:
    """To a worker that asks for its turn: its number, its next step, whether all is over, and the servers.

    Neither a step nor the end: the worker was given up on while it waited, and asks again.
    """

    worker: int
    turn: Turn | None
    is_over: bool
    servers: list[Any]


@dataclass
class Slot:
    """A server as the scheduler knows it; `incarnation` is that of the process which was last loaded."""

    handle: Any
    capacity: int | None
    incarnation: str | None = None
    is_lost: bool = False


class Scheduler:
    """One job: waits for servers and workers, hands out turns, orders updates and checkpoints, restores servers.

    Methods that wait raise what ended the job, if something did.
    """

    def __init__(self, job: Job) -> None:
        use_virtual_devices(1)
        self._job = job
        self._progress = Progress(job.steps, job.staleness, job.save_every)
        self._slots: list[Slot] = []
        self._placed: tuple[tuple[Shard, ...], ...] = ()
        self._parts: list[Part] = []
        self._folder = None if job.folder is None else Path(job.folder)
        self._manifest: Manifest | None = None

        self._seen: dict[int, float] = {}
        self._traffic = Traffic()
        self._restores: list[Restore] = []
        self._stage = "waits"
        self._suspected = False
        self._failure: AutoparError | None = None
        self._changed = asyncio.Condition()
        self._manifest_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._updates_under_way: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begins to wait for servers and workers."""
        self._task(self._run())

    # Asked by servers -------------------------------------------------------------------------------------------------

    async def join_server(self, handle: Any, capacity: int | None) -> int:
        """A server that has room for so many bytes; its number: of a lost one, if one is lost.

        Raises:
          ParameterServerError: the job has all its servers.
        """
        self._check()
        lost = [number for number, slot in enumerate(self._slots) if slot.is_lost]
        if not lost and len(self._slots) == self._job.servers:
            raise ParameterServerError(
                f"the job has its {self._job.servers} servers; start it with more, or start fewer"
            )
        slot = Slot(handle, capacity)
        number = lost[0] if lost else len(self._slots)
        self._slots[number : number + 1] = [slot]
        await self._notify()
        return number

    # Asked by workers -------------------------------------------------------------------------------------------------

    async def layout(self) -> tuple[Layout, list[Any], int]:
        """What a worker has to know, the servers, once they hold the parameters, and the generation."""
        await self._until(lambda: self._stage not in ("waits", "restores"))
        servers = [slot.handle for slot in self._slots]
        return self._layout(), servers, self._progress.generation

    async def join(self) -> int:
        """A new worker's number."""
        self._check()
        worker = self._progress.join()
        self._seen[worker] = monotonic()
        await self._notify()
        return worker

    async def beat(self, worker: int) -> None:
        """The worker is there."""
        if worker in self._seen:
            self._seen[worker] = monotonic()

    async def turn(self, worker: int, lost: int) -> Answer:
        """What the worker does next; one that was given up on is a new one.

        `lost`: the generation in which it missed a server, which is over before the next turn; -1: none.
        """
        self._suspected |= lost == self._progress.generation
        await self._until(lambda: self._stage != "starts" and self._progress.generation > lost)
        await self._until(lambda: self._stage != "restores")
        if worker not in self._seen and self._stage == "runs":
            worker = self._progress.join()
            self._seen[worker] = monotonic()
        await self.beat(worker)
        found: list[Turn] = []

        def is_next() -> bool:
            if self._stage != "runs" or worker not in self._seen:
                return self._stage != "restores"
            turn = self._progress.turn(worker)
            found[:] = [] if turn is None else [turn]
            return bool(found)

        await self._until(is_next)
        servers = [slot.handle for slot in self._slots]
        return Answer(worker, found[0] if found else None, self._stage not in RUNNING, servers)

    async def pushed(
        self, worker: int, generation: int, step: int, examples: int, loss: float
    ) -> None:
        """All servers have the worker's gradient of its turn."""
        is_known = worker in self._seen and generation == self._progress.generation
        if is_known and self._stage == "runs":
            self._seen[worker] = monotonic()
            self._order(self._progress.push(worker, Push(step, examples, loss)))
            await self._notify()

    async def leave(self, worker: int, traffic: Traffic) -> None:
        """The worker has finished, or gives up."""
        self._traffic += traffic
        await self._drop(worker)

    # Asked by whoever started it --------------------------------------------------------------------------------------

    async def outcome(self) -> tuple[Traffic, tuple[Restore, ...]]:
        """How the job ended, once all its steps are done and its workers have left."""
        await self._until(lambda: self._stage == "done")
        return self._traffic, tuple(self._restores)

    async def updates(self) -> tuple[Update, ...]:
        """The updates so far."""
        return tuple(self._progress.updates)

    async def release(self) -> None:
        """Lets servers that were started by hand end; returns when they have been told."""
        self._stage = "released"
        await self._notify()
        await asyncio.sleep(GRACE_S)

    async def released(self) -> None:
        """Waits until the job is over."""
        await self._until(lambda: self._stage == "released")

    # The job ----------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        job = self._job
        await self._until_all_came(
            lambda: len(self._slots) == job.servers,
            lambda: f"{len(self._slots)} of {job.servers} servers",
        )
        self._place()
        await self._until_loaded(self._load_first)
        self._stage = "starts"
        await self._notify()

        await self._until_all_came(
            lambda: len(self._seen) >= job.workers,
            lambda: f"{len(self._seen)} of {job.workers} workers",
        )
        self._stage = "runs"
        await self._notify()
        await self._watch()

    def _place(self) -> None:
        job = self._job
        leaves = job.leaves()
        self._placed = place(leaves, [slot.capacity for slot in self._slots])
        tables = frozenset(job.tables)
        self._parts = [
            Part(shards, tables, job.optimizer, job.optimizer_of_tables) for shards in self._placed
        ]
        if self._folder is not None:
            self._manifest = Manifest(self._folder, self._placed)

    async def _load_first(self) -> None:
        """What the folder has; if it has nothing, the initial values, which are saved there."""
        if self._manifest is None:
            await self._load(None)
            return
        versions = self._manifest.versions()
        if versions:
            loaded, unreadable = await self._load_latest(self._manifest)
            if unreadable:
                self._restores.append(Restore(versions[0].version, loaded.version, unreadable))
            return

        await self._load(None)
        await asyncio.gather(*(slot.handle.save.remote(0) for slot in self._slots))
        await self._note_saved(Saved(0, {}), self._progress.generation)

    async def _load(self, saved: Saved | None) -> None:
        """All servers hold what was saved, or the initial values."""
        if saved is not None:
            self._progress.roll_back(saved)
        values = by_name(self._job.params)
        shapes = shapes_by_name(self._job.params)
        waits: list[Any] = []

        for number, (slot, part) in enumerate(zip(self._slots, self._parts, strict=True)):
            slot.incarnation = await slot.handle.incarnation.remote()
            mine = {
                shard.key: _rows(np.asarray(values[shard.name], shapes[shard.name].dtype), shard)
                for shard in part.shards
            }
            where = Place(number, len(self._slots), self._folder)
            version = None if saved is None else saved.version
            waits.append(
                slot.handle.load.remote(where, part, mine, self._progress.generation, version)
            )

        await asyncio.gather(*waits)
        self._suspected = False

    def _order(self, commits: Sequence[Commit]) -> None:
        """Tells all servers of updates, and takes note when they have saved one."""
        for commit in commits:
            generation = self._progress.generation
            clocks = dict(self._progress.clocks)
            calls = [slot.handle.apply.remote(generation, commit) for slot in self._slots]
            task = self._task(self._applied(commit, generation, clocks, calls))
            self._updates_under_way.add(task)
            task.add_done_callback(self._updates_under_way.discard)

    async def _applied(
        self, commit: Commit, generation: int, clocks: Mapping[int, int], calls: Sequence[Any]
    ) -> None:
        try:
            done = await asyncio.gather(*calls)
        except ray().exceptions.RayActorError:
            self._suspected = True
            return
        if commit.saves and all(done):
            await self._note_saved(Saved(commit.version, clocks), generation)

    async def _note_saved(self, saved: Saved, generation: int) -> None:
        """All servers have saved that; if they were restored meanwhile, it is not continued."""
        async with self._manifest_lock:
            if self._manifest is not None and generation == self._progress.generation:
                await asyncio.to_thread(self._manifest.add, saved)

    async def _watch(self) -> None:
        """Looks at who is there until all steps are done and all workers have left."""
        alone_since: float | None = None
        while self._stage != "ends":
            await asyncio.sleep(TICK_S)
            await self._look_at_workers()
            await self._look_at_servers()
            if self._progress.is_over:
                await self._finish()
            alone_since = None if self._seen else alone_since or monotonic()
            if alone_since and monotonic() - alone_since > self._job.start_timeout_s:
                raise ParameterServerError(
                    f"no worker is left after {self._progress.version} updates, and none came within "
                    f"{self._job.start_timeout_s:g} s"
                )

        while self._seen:
            await asyncio.sleep(TICK_S)
            await self._look_at_workers()
        self._stage = "done"
        await self._notify()

    async def _finish(self) -> None:
        """All updates are made and saved, unless a server is lost on the way."""
        await asyncio.gather(*self._updates_under_way)
        version = self._progress.version
        if self._manifest is not None and not self._suspected:
            try:
                await asyncio.gather(*(slot.handle.save.remote(version) for slot in self._slots))
            except ray().exceptions.RayActorError:
                self._suspected = True
                return
            saved = Saved(version, dict(self._progress.clocks))
            await self._note_saved(saved, self._progress.generation)

        if not self._suspected:
            self._stage = "ends"
            await self._notify()

    async def _look_at_workers(self) -> None:
        silent = monotonic() - self._job.patience_s
        for worker in [worker for worker, seen in self._seen.items() if seen < silent]:
            await self._drop(worker)

    async def _drop(self, worker: int) -> None:
        if self._seen.pop(worker, None) is not None:
            self._order(self._progress.leave(worker))
            await self._notify()

    async def _look_at_servers(self) -> None:
        for slot in self._slots:
            slot.is_lost = await _incarnation(slot.handle) != slot.incarnation
        if self._suspected or any(slot.is_lost for slot in self._slots):
            await self._restore()

    async def _restore(self) -> None:
        """All servers as at the last checkpoint that can be read, a lost one in a new process."""
        self._stage = "restores"
        await self._until_loaded(self._load_saved)
        self._seen = dict.fromkeys(self._seen, monotonic())
        self._stage = "runs"
        await self._notify()

    async def _load_saved(self) -> None:
        if self._manifest is None:
            raise ParameterServerError(
                "a server was lost, and the job keeps no checkpoints: pass folder=... to Job to have it restored"
            )
        lost_at = self._progress.version
        loaded, unreadable = await self._load_latest(self._manifest)
        self._restores.append(Restore(lost_at, loaded.version, unreadable))

    async def _until_loaded(self, load: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Loads all servers, again if one is lost on the way."""
        while True:
            await self._all_there()
            try:
                await load()
            except ray().exceptions.RayActorError:
                continue
            return

    async def _all_there(self) -> None:
        """Waits for a process behind every server.

        Raises:
          ParameterServerError: for too long.
        """
        end = monotonic() + self._job.start_timeout_s
        while None in (found := [await _incarnation(slot.handle) for slot in self._slots]):
            number = found.index(None)
            self._slots[number].is_lost = True
            if monotonic() > end:
                raise ParameterServerError(
                    f"server {number} is gone, and none came in its place within {self._job.start_timeout_s:g} s: "
                    "start one with the scheduler's address"
                )
            await asyncio.sleep(TICK_S)

    async def _load_latest(self, manifest: Manifest) -> tuple[Saved, str]:
        """The latest version that all servers can read, which they hold now; and why none after it."""
        unreadable = ""
        for saved in manifest.versions():
            try:
                await self._load(saved)
            except ParameterServerError as error:
                unreadable = unreadable or str(getattr(error, "cause", error))
                continue
            async with self._manifest_lock:
                await asyncio.to_thread(manifest.roll_back, saved)
            return saved, unreadable

        raise ParameterServerError(f"no checkpoint in {self._folder} can be read: {unreadable}")

    # What it stands on ------------------------------------------------------------------------------------------------

    def _layout(self) -> Layout:
        job = self._job
        tables = {name: job.ids_in_batch(name) for name in job.tables}
        return Layout(
            names_in(job.params),
            shapes_by_name(job.params),
            self._placed,
            tables,
            job.patience_s,
        )

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs beside all else; what it raises ends the job."""
        task = asyncio.ensure_future(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            cause = getattr(error, "cause", error)
            self._failure = (
                cause
                if isinstance(cause, AutoparError)
                else ParameterServerError(f"the scheduler fails: {type(cause).__name__}: {cause}")
            )
            await self._notify()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Waits; raises what ended the job, if something did."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._failure is not None or holds())
        self._check()

    async def _until_all_came(self, holds: Callable[[], bool], who: Callable[[], str]) -> None:
        """Waits for `start_timeout_s` at most; `who` is how many of whom are there."""
        limit_s = self._job.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._until(holds)
        except TimeoutError as error:
            raise ParameterServerError(
                f"{who()} came within {limit_s:g} s: start the others with the scheduler's address"
            ) from error


async def _incarnation(server: Any) -> str | None:
    """Of the process that the server now is; None: there is none."""
    try:
        return await server.incarnation.remote()
    except ray().exceptions.RayActorError:
        return None


def _rows(value: Array, shard: Shard) -> Array:
    return value[shard.start : shard.stop] if value.ndim else value
