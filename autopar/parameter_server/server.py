"""A server: a Ray actor around a store. Updates are made in the order of their numbers, whatever order they come in."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from autopar.emit.measure import use_virtual_devices
from autopar.parameter_server.checkpoints import path_of, read_arrays, write_arrays
from autopar.parameter_server.records import Commit, Part
from autopar.parameter_server.store import Gradients, Store

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Place:
    """Which server of how many it is, and where its checkpoints lie."""

    number: int
    servers: int
    folder: Path | None

    def path(self, version: int) -> Path:
        """The file of a version."""
        assert self.folder is not None
        return path_of(self.folder, version, self.number, self.servers)


class Server:
    """Holds shards; nothing before `load`. A call of another generation than the last loaded one does nothing."""

    def __init__(self) -> None:
        use_virtual_devices(1)
        self._incarnation = f"{os.getpid()}-{uuid4().hex}"
        self._generation = -1
        self._version = 0
        self._pushed: dict[tuple[int, int], Gradients] = {}
        self._changed = asyncio.Condition()
        self._writes = asyncio.Lock()

    async def incarnation(self) -> str:
        """The number of its process, and something that is another in every process that this actor has been."""
        return self._incarnation

    async def load(
        self,
        place: Place,
        part: Part,
        values: Mapping[str, Array],
        generation: int,
        version: int | None,
    ) -> None:
        """The shards with these values, or, with a `version`, as they were saved then.

        Raises:
          ParameterServerError: what was saved cannot be read.
        """
        store = Store(part, values)
        if version is not None:
            store.restore(await asyncio.to_thread(read_arrays, place.path(version)))

        async with self._changed:
            self._place = place
            self._store = store
            self._version = version or 0
            self._generation = generation
            self._pushed.clear()
            self._changed.notify_all()

    async def save(self, version: int) -> None:
        """Writes all that is held, as `version`."""
        await self._write(version, self._store.arrays())

    async def pull(
        self, generation: int, version: int, wanted: Mapping[str, Array | None]
    ) -> dict[str, Array] | None:
        """Shards, or rows of them, after at least `version` updates; None: the servers were restored since.

        Raises:
          UnknownParameter: a shard or a row that is not here.
        """
        if not await self._reached(generation, version):
            return None
        return self._store.read(wanted)

    async def push(self, generation: int, worker: int, step: int, gradients: Gradients) -> bool:
        """Keeps a worker's gradients until an update takes them; False: the servers were restored since.

        Raises:
          UnknownParameter, GradientMismatch: they are not those of what is held here.
        """
        if generation != self._generation:
            return False
        self._store.check(gradients)
        self._pushed[worker, step] = gradients
        return True

    async def apply(self, generation: int, commit: Commit) -> bool:
        """Makes an update, saves it if it says so; False: the servers were restored since."""
        if not await self._reached(generation, commit.version - 1):
            return False
        self._store.apply([(self._pushed.pop(key), share) for key, share in commit.shares])
        for key in [key for key in self._pushed if key[0] not in commit.live]:
            del self._pushed[key]
        self._version = commit.version
        arrays = self._store.arrays() if commit.saves and self._place.folder else None

        async with self._changed:
            self._changed.notify_all()

        if arrays is not None:
            await self._write(commit.version, arrays)
        return True

    async def _write(self, version: int, arrays: Mapping[str, Array]) -> None:
        """One file after another: after a restore a version is written again."""
        async with self._writes:
            await asyncio.to_thread(write_arrays, self._place.path(version), arrays)

    async def _reached(self, generation: int, version: int) -> bool:
        """Waits for that many updates; False: the generation is over."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: (
                    self._generation > generation
                    or (self._generation == generation and self._version >= version)
                )
            )
        return self._generation == generation
