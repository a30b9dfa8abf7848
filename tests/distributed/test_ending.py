"""How a process that fails ends: at once, with its own exit code and what is open closed. No JAX is needed for that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autopar.distributed.variables import FAILURE
from tests.distributed.launched import ROOT

SCRIPT = """
import atexit, sys, threading
from autopar.distributed.ending import end_at_once_if_failing

atexit.register(print, "at exit")  # where JAX waits for the others
end_at_once_if_failing(blaming_others=ConnectionError)

def main():
    try:
        {body}
    finally:
        print("closed")

main()
"""


def ended(body: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a script that does this."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.rpartition("Traceback")[2]


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit(-1)", 255, ""),
        ("exit(8)", 8, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise ValueError('lost')", 1, "ValueError: lost\n"),
        ("raise ConnectionError", 1, "ConnectionError\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
    ],
)
def test_a_process_that_fails_runs_nothing_at_exit(body: str, code: int, said: str) -> None:
    found, out, err = ended(body)
    assert (found, out) == (code, "closed\n")
    assert err.endswith(said)


def test_a_process_that_cannot_say_when_it_failed_ends_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FAILURE, str(tmp_path / "no folder" / "failed"))
    assert ended("sys.exit(7)")[:2] == (7, "closed\n")


@pytest.mark.parametrize("body", ["pass", "sys.exit()", "sys.exit(None)", "sys.exit(0)"])
def test_a_process_that_ends_well_ends_as_ever(body: str) -> None:
    assert ended(body) == (0, "closed\nat exit\n", "")


CAUGHT = """
        for _ in range(2):
            try:
                sys.exit(3)
            except SystemExit as error:
                print(error.code, error.args, isinstance(error, SystemExit))
        thread = threading.Thread(target=sys.exit, args=(4,))
        thread.start()
        thread.join()
"""


def test_an_exit_that_is_caught_ends_nothing() -> None:
    """Nor does one in a thread, which ends that alone."""
    told = "3 (3,) True\n"
    assert ended(CAUGHT.strip()) == (0, f"{told}{told}closed\nat exit\n", "")
