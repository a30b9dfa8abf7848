"""The launcher, with scripts that need no JAX: what they are told, what is shown, and how all end together."""

from __future__ import annotations

import json
import signal
import socket
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autopar.distributed.launch import Job, _Shown, _Watch
from autopar.errors import InvalidOption
from tests.distributed.launched import ended, is_running, launched, started, wait_for

NUMBER = (
    "import os, sys, time; from pathlib import Path; number = int(os.environ['JAX_PROCESS_ID'])\n"
)
WAITING = f"""{NUMBER}
Path(f"pid.{{number}}.part").write_text(str(os.getpid()))
Path(f"pid.{{number}}.part").rename(f"pid.{{number}}")
time.sleep(100)
"""
SAVING = f"""{NUMBER}
import signal
def save(*_):
    Path(f"saved.{{number}}").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
{WAITING}
"""
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITING}"
AFTER_RANK_0 = "while number == 1 and not Path('pid.0').exists(): time.sleep(0.01)\n"
has_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def pids(folder: Path, count: int = 2) -> list[int]:
    """The numbers of the processes, once all have written theirs."""
    files = [folder / f"pid.{number}" for number in range(count)]
    wait_for(lambda: all(file.exists() for file in files))
    return [int(file.read_text()) for file in files]


def test_each_process_is_told_who_it_is(tmp_path: Path) -> None:
    script = f"{NUMBER}import json; print(json.dumps([sys.argv[1:], dict(os.environ)])); print(number, file=sys.stderr)"
    (tmp_path / "own.py").write_text(script)
    options = ("-n", 3, "--devices-per-process", 2, "--log-dir", "logs", "own.py", "--lr", "0.1")
    done = launched(tmp_path, Path("-n"), *options)
    assert (done.code, done.err) == (0, "0\n")
    logs = [(tmp_path / f"logs/rank.{n}/stdout").read_text() for n in range(3)]
    assert done.out == logs[0]
    assert [(tmp_path / f"logs/rank.{n}/stderr").read_text() for n in range(3)] == [
        "0\n",
        "1\n",
        "2\n",
    ]

    arguments, told = zip(*map(json.loads, logs), strict=True)
    assert arguments == (["--lr", "0.1", "-n"],) * 3
    assert len({one["JAX_COORDINATOR_ADDRESS"] for one in told}) == 1
    assert [one["JAX_NUM_PROCESSES"] for one in told] == ["3"] * 3
    assert [one["JAX_NUM_CPU_DEVICES"] for one in told] == ["2"] * 3
    assert [one["JAX_LOCAL_DEVICE_IDS"] for one in told] == ["0,1", "2,3", "4,5"]


@has_proc
def test_all_stop_when_one_fails(tmp_path: Path) -> None:
    script = f"{NUMBER}{AFTER_RANK_0}if number == 1: print('lost', file=sys.stderr); sys.exit(7)\n{WAITING}"
    done = launched(tmp_path, script, "-n", 2)
    assert done.code == 7
    assert "rank 1 ended with exit code 7" in done.err
    assert "log_output/rank.1/stderr:\nlost\n" in done.err
    assert not any(map(is_running, pids(tmp_path, 1)))


def test_the_first_that_fails_is_named_though_it_ends_last(tmp_path: Path) -> None:
    """Rank 0 fails for want of rank 1, and is gone before it."""
    script = """
import os
from pathlib import Path
from time import sleep
from autopar.distributed.ending import _end
if os.environ["JAX_PROCESS_ID"] == "1":
    leave = os._exit
    os._exit = lambda code: (sleep(0.05), leave(code))
    _end(7)
while not Path("log_output/rank.1/failed").exists():
    sleep(0.001)
_end(1)
"""
    done = launched(tmp_path, script, "-n", 2)
    assert done.code == 7
    assert done.err.index("rank 0 ended with") < done.err.index("rank 1 ended with exit code 7")


def test_a_signal_that_ends_a_process_is_named(tmp_path: Path) -> None:
    script = f"{NUMBER}print('here', flush=True)\n{AFTER_RANK_0}if number == 1: os.kill(os.getpid(), 9)\n{WAITING}"
    done = launched(tmp_path, script, "-n", 2)
    assert done.code == 128 + signal.SIGKILL
    assert "rank 1 was ended by SIGKILL" in done.err
    assert "log_output/rank.1/stdout:\nhere\n" in done.err
    assert done.out == "here\n"


@has_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    process = started(tmp_path, SAVING.replace("signal.SIGTERM", f"signal.{number.name}"), "-n", 2)
    children = pids(tmp_path)
    process.send_signal(number)
    done = ended(process)
    assert done.code == 128 + number
    assert all((tmp_path / f"saved.{n}").exists() for n in range(2))
    assert not any(map(is_running, children))


@has_proc
@pytest.mark.parametrize(("grace", "signals"), [(0.2, 1), (100, 2)], ids=["grace", "twice"])
def test_what_does_not_end_is_killed(grace: float, signals: int, tmp_path: Path) -> None:
    """After the time to save, or at a second signal."""
    process = started(tmp_path, DEAF, "-n", 2, "--grace", grace)
    children = pids(tmp_path)
    for sent in range(signals):
        process.send_signal(signal.SIGTERM)
        if sent == 0:
            assert process.stderr is not None
            assert f"SIGTERM: the processes have {grace:g} s" in process.stderr.readline()
    assert ended(process, 60).code == 128 + signal.SIGTERM
    assert not any(map(is_running, children))


def test_a_second_signal_that_comes_at_once_is_not_waited_for(tmp_path: Path) -> None:
    """It may come while the first is still being passed on."""
    (tmp_path / "script.py").touch()
    polls = iter([None])  # asked once; nobody ends
    rank: Any = SimpleNamespace(
        number=0, send=lambda _: None, process=SimpleNamespace(poll=lambda: next(polls))
    )
    files = [BytesIO(), BytesIO()]
    shown = _Shown(files, (BytesIO(), BytesIO()))
    signals = [int(signal.SIGTERM)] * 2
    watch = _Watch(Job(tmp_path / "script.py"), [rank], signals, shown)
    assert watch._stopped() == 128 + signal.SIGTERM


@has_proc
def test_no_process_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    process = started(tmp_path, DEAF, "-n", 2)
    children = pids(tmp_path)
    process.kill()
    ended(process)
    wait_for(lambda: not any(map(is_running, children)))


@has_proc
def test_what_a_script_leaves_running_ends_with_it(tmp_path: Path) -> None:
    script = "import subprocess; from pathlib import Path\n"
    script += "Path('pid.0').write_text(str(subprocess.Popen(['sleep', '100']).pid))"
    done = launched(tmp_path, script)
    assert done.code == 0
    (left,) = pids(tmp_path, 1)
    wait_for(lambda: not is_running(left))


def test_a_process_that_does_not_come_is_named(tmp_path: Path) -> None:
    script = f"{NUMBER}if number != 1: Path(os.environ['AUTOPAR_ARRIVAL_FILE']).touch()\n"
    script += "print('reading', number, flush=True); time.sleep(100)"
    done = launched(tmp_path, script, "-n", 3, "--timeout", 0.5)
    assert done.code == 2
    assert "log_output/rank.1/stdout:\nreading 1\n" in done.err
    assert done.err.endswith(
        "error: JobError: rank 1 did not come within 0.5 s: it has not reached autopar.distributed.init(), in which "
        "the others wait\n"
    )


def test_a_script_that_joins_nobody_has_all_the_time(tmp_path: Path) -> None:
    assert launched(tmp_path, "import time; time.sleep(0.5)", "-n", 2, "--timeout", 0).code == 0


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = launched(tmp_path, "", "-n", 2, "--port", port)
    assert done.code == 2
    assert (
        f"JobError: process 0 cannot listen at 127.0.0.1:{port} (Address already in use)"
        in done.err
    )
    assert not (tmp_path / "log_output").exists()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"script": Path("nowhere.py")}, "there is no script 'nowhere.py'"),
        ({"script": Path(__file__), "processes": 0}, "0 processes: expected at least 1"),
        ({"script": Path(__file__), "devices_per_process": 0}, "0 devices for each process"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(job: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Job(**job)  # pyright: ignore[reportArgumentType]
