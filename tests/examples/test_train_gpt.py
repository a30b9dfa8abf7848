"""The end-to-end example: launched, killed, gone on with in other processes, to the loss of a job left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = 10
TIMEOUT_S = 150


def started(directory: Path, processes: int, steps: int = STEPS) -> subprocess.Popen[bytes]:
    """The launcher of the example on 8 devices."""
    directory.mkdir(exist_ok=True)
    launch = ["launch", "-n", str(processes), "--devices-per-process", str(8 // processes)]
    logs = ["--log-dir", str(directory / "logs")]
    script = [str(ROOT / "examples" / "train_gpt.py"), str(directory)]
    options = ["--steps", str(steps), "--every", "2", "--layers", "2"]
    with (directory / "launch.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "autopar", *launch, *logs, *script, *options],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


def ended(launcher: subprocess.Popen[bytes], directory: Path) -> int:
    try:
        return launcher.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired as late:
        raise AssertionError((directory / "launch.log").read_text()[-3000:]) from late
    finally:
        launcher.terminate()
        launcher.wait()


def losses(directory: Path) -> dict[int, float]:
    path = directory / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    return {line["step"]: line["loss"] for line in told}


def checkpoints(directory: Path) -> list[int]:
    names = [path.name for path in (directory / "checkpoints").glob("*")]
    return sorted(int(name) for name in names if name.isdigit())


def kill_one(launcher: subprocess.Popen[bytes], directory: Path, rank: int) -> None:
    """Kills a process once two checkpoints are there."""
    end_s = monotonic() + TIMEOUT_S
    while len(checkpoints(directory)) < 2:
        assert launcher.poll() is None, (directory / "launch.log").read_text()[-3000:]
        assert monotonic() < end_s
        sleep(0.01)
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    os.kill(int(children[rank]), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_killed_job_goes_on_in_other_processes_to_the_same_loss(tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    assert ended(started(alone, processes=4), alone) == 0
    wanted = losses(alone)
    assert list(wanted) == list(range(1, STEPS + 1))
    assert wanted[STEPS] < wanted[1] - 0.5

    killed = tmp_path / "killed"
    launcher = started(killed, processes=4, steps=1000)
    kill_one(launcher, killed, rank=2)
    assert ended(launcher, killed) == 128 + signal.SIGKILL
    before = losses(killed)
    kept = checkpoints(killed)[-1]
    assert all(before[n] == wanted[n] for n in before.keys() & wanted.keys())  # the same mesh

    assert kept < STEPS, "killed too late to go on"
    for processes in (2, 1):
        directory = tmp_path / f"on {processes}"
        shutil.copytree(killed, directory)
        assert ended(started(directory, processes), directory) == 0
        found = losses(directory)
        assert list(found) == list(range(1, STEPS + 1))
        assert found[STEPS] == pytest.approx(wanted[STEPS], rel=1e-5)
        assert f"step {STEPS}: loss {found[STEPS]:.6f}" in (directory / "launch.log").read_text()
