"""Scripts under `autopar launch`, as a user starts it: a process of its own, which passes signals on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a launch ended, and what it showed."""

    code: int
    out: str
    err: str


def started(folder: Path, script: str | Path, *options: object) -> subprocess.Popen[str]:
    """`autopar launch` in `folder`; `script` is a file, or the text of one."""
    if isinstance(script, str):
        (folder / "script.py").write_text(script)
        script = Path("script.py")
    command = [sys.executable, "-m", "autopar", "launch", *map(str, options), str(script)]
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], timeout_s: float = 200) -> Ended:
    """The launch after its end."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return Ended(process.returncode, out, err)


def launched(folder: Path, script: str | Path, *options: object) -> Ended:
    """As `started`, then `ended`."""
    return ended(started(folder, script, *options))


def wait_for(is_so: Callable[[], bool], timeout_s: float = 60) -> None:
    """Returns once something is so.

    Raises:
      AssertionError: if it is not in time.
    """
    end_s = monotonic() + timeout_s
    while not is_so():
        assert monotonic() < end_s
        sleep(0.01)


def is_running(number: int) -> bool:
    """Whether a process runs; one that ended and that nobody waits for does not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
