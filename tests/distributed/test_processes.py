"""Processes that join under JAX: alone, launched, by Open MPI; and what those tell that fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from autopar import distributed
from autopar.errors import DifferentValues, InvalidOption, JobError
from tests.distributed.launched import ROOT, Ended, launched

JOB = ROOT / "tests" / "distributed" / "job.py"
JOINING = """
from autopar import distributed
distributed.init()
import jax
from jax.experimental.multihost_utils import sync_global_devices
print(f"rank {distributed.rank()} of {distributed.group_size()}, {len(jax.devices())} devices", flush=True)
sync_global_devices("all")
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes found; they are started once."""
    folder = tmp_path_factory.mktemp("job")
    done = launched(folder, JOB, "-n", 2, "--devices-per-process", 2)
    assert done.code == 0, done.err
    return json.loads(done.out.splitlines()[-1])


def test_launched_processes_join(found: dict[str, Any]) -> None:
    assert (found["group"], found["devices"]) == (2, 4)


def test_a_state_is_born_in_place_and_the_same(found: dict[str, Any]) -> None:
    assert found["in place"]
    assert found["born"] == ""
    assert found["split"] == ""  # each process has a part of its own


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("keys", "state (process 0 / process 1)"),
        ("drifted", "state['b'] (process 0 / process 1)"),
        ("host", "state['x'] (process 0 / process 1)"),
        ("missing", "state['b'] (process 1: nothing)"),
    ],
)
def test_what_differs_is_named_by_all_alike(case: str, named: str, found: dict[str, Any]) -> None:
    assert found[case].startswith(f"the processes do not hold the same of {named}. ")


def test_what_one_process_read_goes_to_all(found: dict[str, Any]) -> None:
    """Structure, text, bits of numbers, typed keys, and more bytes than a power of two."""
    assert found["read"] == [True, True]
    already, nobody = found["refused"]
    assert "tree['w'] is an array over several processes: all have it" in already
    assert "there is no process 2: expected 0 to 1" in nobody


def test_alone_nothing_is_joined_and_all_is_the_same() -> None:
    distributed.init()
    assert (distributed.rank(), distributed.group_size()) == (0, 1)
    tree = {"w": jax.numpy.ones(3), "name": "x"}
    got = distributed.broadcast(tree)
    assert np.array_equal(got["w"], tree["w"])
    assert got["name"] == "x"
    distributed.check_same({"w": jax.numpy.ones(3), "count": 1})


def test_copies_on_devices_of_one_process_are_compared() -> None:
    sharding = jax.NamedSharding(jax.make_mesh((2, 2), ("x", "y")), jax.P("x"))
    values = iter([0.0, 0.0, 1.0, 2.0])
    pieces = [
        jax.device_put(np.full(2, next(values), np.float32), device)
        for device in sharding.mesh.devices.flat
    ]
    drifted = jax.make_array_from_single_device_arrays((4,), sharding, pieces)
    with pytest.raises(DifferentValues, match=r"tree\['w'\]\[2:4\] \(process 0 / process 0\)"):
        distributed.check_same({"w": drifted, "b": 1.0})


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"JAX_NUM_PROCESSES": "2"}, "JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID is not given"),
        (
            {
                "JAX_COORDINATOR_ADDRESS": "a:1",
                "JAX_NUM_PROCESSES": "two",
                "JAX_PROCESS_ID": "0",
            },
            "JAX_NUM_PROCESSES is 'two': expected a whole number",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "a", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"},
            "JAX_COORDINATOR_ADDRESS is 'a': expected HOST:PORT",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"},
            "this is process 2 of 2: expected 0 to 1",
        ),
    ],
)
def test_variables_that_make_no_sense_are_refused(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidOption, match=message):
        distributed.init()


def test_processes_that_jax_does_not_find_do_not_train_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PMI_SIZE", "1")
    distributed.init()
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(JobError, match=r"PMI_SIZE says that there are 4 processes"):
        distributed.init()


def test_too_late_is_refused() -> None:
    assert len(jax.devices()) == 8  # JAX is in use
    with pytest.raises(JobError, match=r"must be called before"):
        distributed.init("127.0.0.1:1", 2, 1)


def run(*command: str, **variables: str) -> Ended:
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def test_a_port_that_process_0_cannot_have_is_named() -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code = f"from autopar import distributed; distributed.init('127.0.0.1:{port}', 2, 0)"
        done = run(sys.executable, "-c", code)
    assert done.code == 1
    assert f"JobError: process 0 cannot listen at :{port} (Address already in use)" in done.err


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("no int: 'two'"), InvalidOption, "JAX cannot tell the processes from what"),
        (
            jax.errors.JaxRuntimeError("UNKNOWN: Failed to start RPC server"),
            JobError,
            r"JAX cannot start \(UNKNOWN: .*JAX_COORDINATOR_PORT names another",
        ),
    ],
    ids=["variables", "port"],
)
def test_what_jax_refuses_is_told(
    error: Exception, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by variables of Open MPI that are no numbers, and by a port of theirs that is taken."""

    def refusing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(jax.distributed, "initialize", refusing)
    with pytest.raises(kind, match=message):
        distributed.init("127.0.0.1:1", 2, 1)


def test_a_process_that_fails_ends_without_waiting_for_the_others(tmp_path: Path) -> None:
    """And is the one that is named, though the other fails for want of it; its own exit code is kept."""
    script = f"""{JOINING}
if distributed.rank() == 1:
    import sys
    print("lost", file=sys.stderr)
    sys.exit(7)
sync_global_devices("again")
"""
    done = launched(tmp_path, script, "-n", 2)
    assert done.code == 7
    assert "rank 1 ended with exit code 7" in done.err
    assert done.err.rstrip().endswith("lost")


AS_ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
LAUNCHERS = {
    "mpirun": (("mpirun", "--version"), ("mpirun", "--oversubscribe", *AS_ROOT, "-n", "2")),
    "srun": (("scontrol", "ping"), ("srun", "--overcommit", "--ntasks=2", "--kill-on-bad-exit=1")),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_another_launcher_starts_the_same_script(launcher: str, tmp_path: Path) -> None:
    """And says which code a process fails with, whose others it stops."""
    asked, command = LAUNCHERS[launcher]
    if shutil.which(asked[0]) is None or run(*asked).code != 0:
        pytest.skip(f"there is no {launcher} on this machine, or nothing that it could ask")
    script = tmp_path / "train.py"
    script.write_text(f"{JOINING}\nif distributed.rank() == 1:\n    import sys\n    sys.exit(7)\n")
    done = run(*command, sys.executable, str(script))
    assert done.code != 0
    assert re.search(r"(?i)exit code:?\s+7\b", done.err), done.err
    said = re.findall(r"rank \d of \d, \d devices", done.out)  # mpirun may join lines
    assert sorted(said) == ["rank 0 of 2, 2 devices", "rank 1 of 2, 2 devices"]


@pytest.mark.slow
def test_variables_start_the_same_script(tmp_path: Path) -> None:
    """As on hosts that nothing joins, or in pods: each process is told by hand."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    script = tmp_path / "train.py"
    script.write_text(JOINING)
    told = [
        {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(n)}
        for n in range(2)
    ]
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda one: run(sys.executable, str(script), **one), told))
    assert [one.code for one in done] == [0, 0], [one.err for one in done]
    assert [f"rank {n} of 2, 2 devices" in one.out for n, one in enumerate(done)] == [True, True]
