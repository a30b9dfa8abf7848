"""Memory is touched page by page, as much as is asked for of what is available."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import backed_memory

TOUCHING = """
from pathlib import Path
from benchmarks import backed_memory
def most():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
before = most()
touched = backed_memory.touch(0.05)
print(touched, most() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what is available")
def test_a_share_of_what_is_available_is_touched() -> None:
    available = backed_memory._available_bytes()
    done = subprocess.run(
        [sys.executable, "-c", TOUCHING], capture_output=True, text=True, check=True
    )
    touched, grown = map(int, done.stdout.split())
    assert 0.9 * touched <= grown <= 1.1 * touched + 2**25
    assert touched <= 0.06 * available


def test_nothing_is_touched_where_linux_does_not_say_what_is_available(tmp_path: Path) -> None:
    assert backed_memory._available_bytes(tmp_path / "meminfo") == 0
