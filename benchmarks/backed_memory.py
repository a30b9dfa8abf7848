"""Memory that the host of a virtual machine has given it: what is measured then does not pay for the first touch.

A virtual machine's memory is often promised, not there: its host finds a page when the guest first touches it. That
takes twelve times as long as any later first touch by a process (1.7 ms a MB instead of 0.14, huge pages), once in the
life of the machine, so that whichever program runs first pays for it: planning two layers on three axes took 1.06 s
instead of 0.84.
"""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np

_SHARE = 0.75  # of what is available: the rest stays for whoever else is there
_STEP_BYTES = 1 << 28


def back_memory() -> None:
    """Has a process touch the memory that is available: it is done with when that process ends."""
    subprocess.run([sys.executable, "-m", "benchmarks.backed_memory"], check=True)


def touch(share: float) -> int:
    """Touches each page of a share of the memory that is available, and gives all back; the bytes touched.

    Half a minute on a machine of 24 GB that is new, some seconds later. Nothing where Linux does not say what is
    available.
    """
    count = int(share * _available_bytes()) // _STEP_BYTES
    held = [np.empty(_STEP_BYTES, dtype=np.uint8) for _ in range(count)]
    for pages in held:
        pages[:: mmap.PAGESIZE] = 1
    return count * _STEP_BYTES


def _available_bytes(file: Path = Path("/proc/meminfo")) -> int:
    lines = file.read_text().splitlines() if file.exists() else []
    return next(
        (1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0
    )


if __name__ == "__main__":
    touch(_SHARE)
