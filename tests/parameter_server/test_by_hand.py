"""Scheduler, servers and workers as processes that somebody starts, and addresses where they are not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import optax
import pytest
from typer.testing import CliRunner

from autopar import parameter_server as ps
from autopar.cli import app
from autopar.errors import InvalidJob, MissingExtra, ParameterServerError
from autopar.parameter_server import cluster
from tests.parameter_server.processes import none_left

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "parameter_server"
PATIENCE_S = 300.0


@contextmanager
def listening() -> Iterator[str]:
    """An address where something listens that is no Ray."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def free_address() -> str:
    with listening() as address:
        return address


@pytest.mark.parametrize("address", ["here", "127.0.0.1", ":6390", "127.0.0.1:0", "host:70000"])
def test_addresses_of_another_form_are_refused(address: str) -> None:
    with pytest.raises(InvalidJob, match="expected HOST:PORT"):
        ps.run_server(address)


def test_an_address_where_nothing_is_is_told() -> None:
    address = free_address()
    with pytest.raises(ParameterServerError, match=f"nothing answers at {address} within 0.1 s"):
        ps.run_server(address, timeout_s=0.1)
    with (
        pytest.raises(ParameterServerError, match="start the scheduler there first"),
        ps.worker(address, timeout_s=0.1),
    ):
        pass


def test_a_port_in_use_is_told() -> None:
    job = ps.Job({"w": np.ones(2, np.float32)}, optax.sgd(0.1), 1)
    with listening() as address, pytest.raises(InvalidJob, match="something listens there already"):
        ps.run_scheduler(job, address)


def test_ray_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'autopar\[ps\]'"):
        ps.run_server("127.0.0.1:6390")


def test_optax_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    for name in [name for name in sys.modules if name.startswith("autopar.parameter_server")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"pip install 'autopar\[ps\]'"):
        import_module("autopar.parameter_server")


class SilentRay:
    """Ray, in a cluster where no actor has a name, which refuses whoever joins."""

    exceptions = cluster.ray().exceptions

    @staticmethod
    def init(**_: object) -> None:
        raise ConnectionError("Authentication failed")

    @staticmethod
    def get_actor(name: str, namespace: str) -> None:
        raise ValueError(f"Failed to look up actor {namespace}/{name}")


def test_a_ray_that_cannot_be_joined_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_is_grpc", lambda *_: True)
    monkeypatch.setattr(cluster, "ray", SilentRay)
    with pytest.raises(
        ParameterServerError,
        match=r"cannot be joined: Authentication failed. Other hosts need its ~/.ray/auth_token",
    ):
        ps.run_server("127.0.0.1:6390")


def test_a_ray_without_a_scheduler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ray", SilentRay)
    with pytest.raises(ParameterServerError, match=r"no scheduler is there within 0.1 s: start it"):
        cluster.scheduler_at("127.0.0.1:6390", 0.1)


@pytest.mark.parametrize(
    ("script", "timeout_s", "message"),
    [
        ("import sys; sys.exit('no home')", 5.0, "Ray makes no token for its cluster:\nno home"),
        ("import sys; sys.exit(sys.argv[1] == 'start')", 5.0, "Ray does not start at 127.0.0.1:"),
        ("import sys, time; time.sleep(9 * (sys.argv[1] == 'start'))", 0.3, "Ray does not listen"),
    ],
    ids=["token", "start", "listen"],
)
def test_a_ray_that_does_not_start_is_told(
    script: str, timeout_s: float, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a command in the place of Ray's that does what Ray would do then."""
    monkeypatch.setattr(cluster, "_RAY", (sys.executable, "-c", script))
    params = {"w": np.ones(2, np.float32)}
    job = ps.Job(params, optax.sgd(0.1), 1, start_timeout_s=timeout_s)
    with pytest.raises(ParameterServerError, match=message):
        ps.run_scheduler(job, free_address())


class Scripts:
    """The example's three scripts, with what they print."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address, self._folder = address, folder
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._folder / f"{name}-{len(self._started)}.log"
        command = [sys.executable, str(EXAMPLES / f"{name}.py"), self._address, *arguments]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=environment
            )
        self._started.append((process, log))
        return process

    def said(self, process: subprocess.Popen[bytes]) -> str:
        """What it printed, once it has ended well."""
        log = next(log for one, log in self._started if one is process)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
        return log.read_text()

    def stop(self) -> None:
        for process, _ in self._started:
            if process.poll() is None:
                process.terminate()
            process.wait(60)


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    with none_left():
        started = Scripts(free_address(), tmp_path)
        try:
            yield started
        finally:
            started.stop()


@pytest.mark.slow
def test_lenet_trains_by_three_scripts_of_which_two_are_killed(
    scripts: Scripts, tmp_path: Path
) -> None:
    """A server's script is killed and another takes its place; a worker's is killed, and the others go on."""
    saved = tmp_path / "saved"
    workers = [scripts.start("worker")]  # first: it waits for the scheduler
    scheduler = scripts.start("scheduler", str(saved))
    servers = [scripts.start("server") for _ in range(2)]
    workers += [scripts.start("worker") for _ in range(2)]

    end = monotonic() + PATIENCE_S
    while latest(saved) < 20:
        assert scheduler.poll() is None, scripts.said(scheduler)
        assert monotonic() < end
        sleep(0.1)
    os.kill(servers[0].pid, signal.SIGKILL)
    os.kill(workers[2].pid, signal.SIGKILL)
    servers[0] = scripts.start("server")

    said = scripts.said(scheduler)
    assert float(said.split()[-1]) > 0.9
    assert "workers (0, 1, 2)" in said
    assert len(said.splitlines()[-2].partition("workers ")[2].split(",")) == 2
    for process in (*servers, *workers[:2]):
        scripts.said(process)
    assert latest(saved) == 60


def latest(folder: Path) -> int:
    manifest = folder / "manifest.json"
    return json.loads(manifest.read_text())["versions"][-1]["version"] if manifest.exists() else -1


@pytest.mark.slow
def test_lenet_trains_by_one_command() -> None:
    target = f"{EXAMPLES / 'lenet_digits.py'}:training"
    command = [sys.executable, "-m", "autopar", "parameter-server", target, "--steps", "30"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with none_left():
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=True
        )
    losses = [
        float(line.split()[3].strip(",")) for line in done.stdout.splitlines() if "loss" in line
    ]
    assert losses[0] > 2
    assert losses[-1] < 1


def test_what_is_no_ray_is_told() -> None:
    with listening() as address, pytest.raises(ParameterServerError, match="is no Ray: give"):
        ps.run_server(address, timeout_s=0.1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1, 2, 3", "must return (job, loss, batch_of)"),
        ("return None", "it returned NoneType"),
        ("raise ValueError('no data')", "training() raised ValueError: no data"),
    ],
)
def test_a_file_that_returns_no_job_is_told(tmp_path: Path, body: str, message: str) -> None:
    file = tmp_path / "model.py"
    file.write_text(f"def training():\n    {body}\n")
    done = CliRunner().invoke(app, ["parameter-server", f"{file}:training"])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
