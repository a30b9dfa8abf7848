"""Jobs on Ray: values are those of plain JAX, staleness is bounded, and who dies costs what the docs say."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import jax
import numpy as np
import optax
import pytest

from autopar import parameter_server as ps
from autopar.errors import (
    GradientMismatch,
    ParameterServerError,
    ServerFull,
    UnknownParameter,
    UnsuitableOptimizer,
)
from autopar.parameter_server.cluster import answer, local, ray
from autopar.parameter_server.launch import Running, start_scheduler, start_server
from tests.parameter_server.processes import none_left
from tests.parameter_server.regression import PARAMS, batch_of, gated, loss, plain

# Ray forks, of which JAX warns wherever it was used before
FORKS = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
pytestmark = [pytest.mark.slow, FORKS]
MESH = {"mesh": {"x": 1}, "devices": 1}


@pytest.fixture(scope="module", autouse=True)
def _one_ray() -> Iterator[None]:
    """Ray is started once, and leaves no process."""
    with none_left(), local():
        yield


def job(**changes: Any) -> ps.Job:
    given: dict[str, Any] = {"steps": 6, "servers": 2, "workers": 3, "patience_s": 20.0}
    return ps.Job(**{"params": PARAMS, "optimizer": optax.adam(1e-2), **given, **changes})


def wait_for(folder: Path, *names: str) -> list[int]:
    """The process numbers in files, once they are there."""
    end = monotonic() + 120
    while not all((folder / name).exists() for name in names):
        assert monotonic() < end
        sleep(0.05)
    sleep(0.2)
    return [int((folder / name).read_text()) for name in names]


def process_of(server: Any) -> int:
    return int(answer(server.incarnation.remote()).partition("-")[0])


@contextmanager
def without_workers(asked: ps.Job) -> Iterator[Any]:
    """The scheduler of a job whose servers are there."""
    scheduler = start_scheduler(asked)
    servers = [start_server() for _ in range(asked.servers)]
    try:
        for server in servers:
            answer(scheduler.join_server.remote(server, None))
        yield scheduler
    finally:
        for actor in (*servers, scheduler):
            ray().kill(actor)


def same(found: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected
    )


def test_synchronous_steps_are_those_of_the_full_batch() -> None:
    """Of parts of unequal sizes, on two devices each, with a momentum that any error would show in."""
    found = ps.train(job(), loss, batch_of, devices=2, mode="data_parallel")
    params, losses = plain(optax.adam(1e-2), [batch_of(step, 0, 1) for step in range(6)])
    same(found.params, params)
    assert [update.loss for update in found.updates] == pytest.approx(losses, rel=1e-5)
    assert all(update.workers == (0, 1, 2) for update in found.updates)
    assert found.restores == ()
    size = sum(value.nbytes for value in PARAMS.values())
    assert found.traffic == ps.Traffic(3 * 6 * size, 3 * 6 * size)


def test_no_worker_is_more_than_k_steps_ahead(tmp_path: Path) -> None:
    """The others wait for a slow one, as far ahead as they may be."""
    slowed = gated(tmp_path, at=-1, slow=0.3)
    found = ps.train(job(staleness=2), loss, slowed, **MESH)
    assert len(found.updates) == 3 * 6
    assert max(update.lead for update in found.updates) == 2
    assert all(len(update.workers) == 1 for update in found.updates)
    assert found.updates[-1].loss < found.updates[0].loss


def test_a_dead_worker_costs_its_part_of_one_step(tmp_path: Path) -> None:
    """Killed within step 2, it is missing there; after that the others have the whole batch between them."""
    asked = job(patience_s=5.0)
    with ps.started(asked, loss, gated(tmp_path, at=2), **MESH) as running:
        pids = wait_for(tmp_path, "0-at-2", "1-at-2", "2-at-2")
        os.kill(pids[1], signal.SIGKILL)
        (tmp_path / "go").touch()
        found = running.result()

    members = [update.workers for update in found.updates]
    assert members[:2] == [(0, 1, 2)] * 2
    assert len({members[2], *members[3:]}) == 1
    assert len(members[2]) == 2
    left = [batch_of(2, index, 3) for index in (0, 2)]
    rest = tuple(np.concatenate(parts) for parts in zip(*left, strict=True))
    batches = [rest if step == 2 else batch_of(step, 0, 1) for step in range(6)]
    params, losses = plain(optax.adam(1e-2), batches)
    same(found.params, params)
    assert [update.loss for update in found.updates] == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("staleness", [None, 1])
def test_a_dead_server_is_restored_from_the_last_checkpoint(
    tmp_path: Path, staleness: int | None
) -> None:
    """All servers go back to one version, and all steps since are made again: nothing is to be seen in the result."""
    (tmp_path / "gate").mkdir()
    asked = job(folder=tmp_path / "saved", save_every=2, staleness=staleness)
    with ps.started(asked, loss, gated(tmp_path / "gate", at=3), **MESH) as running:
        wait_for(tmp_path / "gate", "0-at-3")
        pid = process_of(running.servers[1])
        os.kill(pid, signal.SIGKILL)
        (tmp_path / "gate" / "go").touch()
        found = running.result()
        assert process_of(running.servers[1]) != pid

    (restore,) = found.restores
    assert restore.lost_at >= 3
    assert restore.version in range(0, restore.lost_at + 1, 2)
    assert restore.unreadable == ""
    if staleness is None:
        params, losses = plain(optax.adam(1e-2), [batch_of(step, 0, 1) for step in range(6)])
        same(found.params, params)
        assert [update.loss for update in found.updates] == pytest.approx(losses, rel=1e-4)
    else:
        assert len(found.updates) == 3 * 6
        assert max(update.lead for update in found.updates) <= staleness


def test_a_job_goes_on_in_its_folder(tmp_path: Path) -> None:
    """And takes the checkpoint before, if a file of the last is damaged."""
    ps.train(job(steps=4, folder=tmp_path, save_every=2), loss, batch_of, **MESH)
    path = tmp_path / "00000004" / "server-1-of-2.npz"
    path.write_bytes(path.read_bytes()[:100])
    found = ps.train(job(folder=tmp_path, save_every=2), loss, batch_of, **MESH)
    params, _ = plain(optax.adam(1e-2), [batch_of(step, 0, 1) for step in range(6)])
    same(found.params, params)
    assert [update.version for update in found.updates] == [3, 4, 5, 6]
    assert "cannot be read" in found.restores[0].unreadable


def test_a_lost_server_without_checkpoints_ends_the_job(tmp_path: Path) -> None:
    with ps.started(job(workers=1), loss, gated(tmp_path, at=1), **MESH) as running:
        wait_for(tmp_path, "0-at-1")
        os.kill(process_of(running.servers[0]), signal.SIGKILL)
        (tmp_path / "go").touch()
        with pytest.raises(ParameterServerError, match="keeps no checkpoints: pass folder="):
            running.result()


def test_what_is_pushed_by_hand_is_checked() -> None:
    """Names and shapes; and the job of a worker that knows better goes on."""
    with without_workers(job(workers=1, steps=2)) as scheduler:
        worker = ps.Worker(scheduler)
        for turn in worker.turns():
            params = worker.pull(turn)
            ones = jax.tree.map(np.ones_like, params)
            with pytest.raises(
                UnknownParameter, match=r"'z' is a gradient of no parameter; .* a, b"
            ):
                worker.push(turn, ones | {"z": ones["c"]}, 1, 0.0)
            with pytest.raises(UnknownParameter, match="'b' has no gradient"):
                worker.push(turn, {"a": ones["a"], "c": ones["c"]}, 1, 0.0)
            with pytest.raises(GradientMismatch, match=r"of b is float32\[16, 3\], the parameter"):
                worker.push(turn, ones | {"b": np.ones((16, 3), np.float32)}, 1, 0.0)
            assert worker.push(turn, ones, 1, 0.0)
        worker.close()
        found = Running(scheduler).result()

    params = PARAMS
    state = (tx := optax.adam(1e-2)).init(params)
    for _ in range(2):
        updates, state = tx.update(jax.tree.map(np.ones_like, params), state, params)
        params = optax.apply_updates(params, updates)
    same(found.params, params)


@pytest.mark.parametrize(
    ("changes", "limit", "error", "message"),
    [
        ({}, 500, ServerFull, "no server has room"),
        (
            {"optimizer": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-2))},
            None,
            UnsuitableOptimizer,
            "depends on others",
        ),
        ({"tables": {"a": "0"}}, None, UnsuitableOptimizer, "table_optimizer"),
    ],
    ids=["full", "optimizer", "table"],
)
def test_jobs_that_cannot_start_say_why(
    changes: dict[str, Any], limit: int | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ps.train(job(workers=1, **changes), loss, batch_of, memory_limit_bytes=limit, **MESH)


def no_batch(step: int, index: int, count: int) -> Any:
    raise ValueError(f"no batch of step {step}")


def test_what_a_worker_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="no batch of step 0"):
        ps.train(job(workers=1, servers=1), loss, no_batch, **MESH)


def test_who_does_not_come_is_missed() -> None:
    with without_workers(job(workers=2, start_timeout_s=4.0)) as scheduler:
        ps.Worker(scheduler)
        with pytest.raises(
            ParameterServerError, match="1 of 2 workers came within 4 s: start the others"
        ):
            Running(scheduler).result()

    scheduler = start_scheduler(job(start_timeout_s=1.0))
    with pytest.raises(ParameterServerError, match="0 of 2 servers came within 1 s"):
        ps.Worker(scheduler)
    ray().kill(scheduler)


def test_a_server_too_many_is_refused() -> None:
    with without_workers(job()) as scheduler:
        server = start_server()
        with pytest.raises(ParameterServerError, match="the job has its 2 servers"):
            answer(scheduler.join_server.remote(server, None))
        ray().kill(server)


def test_a_scheduler_that_dies_is_told() -> None:
    """To its workers, and to whoever waits for the result."""
    with without_workers(job(servers=1)) as scheduler:
        worker = ps.Worker(scheduler)
        ray().kill(scheduler)
        with pytest.raises(ParameterServerError, match="the scheduler is gone: start scheduler"):
            next(worker.turns())
        with pytest.raises(ParameterServerError, match="the process of the scheduler is gone"):
            Running(scheduler).result()
        with pytest.raises(ParameterServerError, match="the scheduler is gone"):
            worker.close()
