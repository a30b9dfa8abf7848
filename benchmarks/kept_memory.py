"""Memory that a process keeps: what is measured on CPU then is what programs do, not what the allocator does.

glibc gives large buffers back to the kernel when they are freed, and takes them page by page when they are next asked
for. Whether it does depends on what was freed before, in any program of the process; where it does, a step of 34 MB a
device took 230 ms instead of 66 (8 virtual devices, 2 cores, 25,000 page faults a step). Only one of its arenas keeps
what is large, so all threads share that: a step of 220 MB a device had 200,000 page faults, 0.55 s of them, and has none.
"""

from __future__ import annotations

import os
import sys

KEEPING = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**28),
}
"""The environment under which glibc keeps what is freed, as a process starts. Other allocators ignore it."""


def keep_memory(module: str) -> None:
    """Starts `python -m module` anew in this process, with its arguments and `KEEPING`, unless that is set already."""
    if any(os.environ.get(name) != value for name, value in KEEPING.items()):
        sys.stdout.flush()
        os.execve(
            sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | KEEPING
        )
