"""The scheduler with servers in its own process: what ends a job when nobody is there to go on with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import optax
import pytest

from autopar.errors import ParameterServerError
from autopar.parameter_server import Job, Traffic
from autopar.parameter_server.cluster import ray
from autopar.parameter_server.scheduler import Scheduler
from autopar.parameter_server.server import Server
from tests.parameter_server.regression import PARAMS

SOON_S = 0.3


class Handle:
    """A server as Ray hands it out, in this process; one that is `gone` answers as actors do that have died."""

    def __init__(self) -> None:
        self._server = Server()
        self.gone = False

    def __getattr__(self, name: str) -> Any:
        async def called(*args: Any) -> Any:
            if self.gone:
                raise ray().exceptions.RayActorError
            return await getattr(self._server, name)(*args)

        return SimpleNamespace(remote=called)


def ended(lost: bool = False, **options: Any) -> None:
    """A job with one server and one worker, which leaves on its turn, or its server is lost then; until its end."""
    assert len(jax.devices()) == 8  # JAX is in use: scheduler and server leave it as it is
    job = Job(PARAMS, optax.sgd(0.1), steps=3, start_timeout_s=SOON_S, **options)

    async def all_of_it() -> None:
        scheduler = Scheduler(job)
        server = Handle()
        await scheduler.start()
        await scheduler.join_server(server, None)
        await scheduler.layout()
        worker = await scheduler.join()
        await scheduler.turn(worker, -1)
        if lost:
            server.gone = True
        else:
            await scheduler.leave(worker, Traffic())
        await scheduler.outcome()

    asyncio.run(all_of_it())


def test_a_job_without_workers_ends() -> None:
    with pytest.raises(
        ParameterServerError,
        match=r"no worker is left after 0 updates, and none came within 0\.3 s",
    ):
        ended()


def test_a_server_that_nobody_replaces_ends_the_job(tmp_path: Path) -> None:
    with pytest.raises(
        ParameterServerError,
        match=r"server 0 is gone, and none came in its place within 0\.3 s: start one",
    ):
        ended(lost=True, folder=tmp_path)


def test_a_folder_of_damaged_checkpoints_ends_the_job(tmp_path: Path) -> None:
    with pytest.raises(ParameterServerError, match="no worker is left"):
        ended(folder=tmp_path)
    (saved,) = tmp_path.rglob("*.npz")
    saved.write_bytes(b"PK")
    with pytest.raises(
        ParameterServerError, match=r"no checkpoint in .* can be read: .*npz cannot be read"
    ):
        ended(folder=tmp_path)


def test_what_else_goes_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(
        ParameterServerError, match="the scheduler fails: JSONDecodeError: Expecting property name"
    ):
        ended(folder=tmp_path)
