"""Processes of Ray that a test started: told by a mark in their environment, whoever their parent is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

MARK = "AUTOPAR_STARTED_BY"
PATIENCE_S = 30.0


@contextmanager
def none_left() -> Iterator[None]:
    """What is started within has ended soon after."""
    mark = os.environ[MARK] = uuid4().hex
    try:
        yield
    finally:
        del os.environ[MARK]
    end = monotonic() + PATIENCE_S
    while (left := marked(mark)) and monotonic() < end:
        sleep(0.2)
    assert left == {}


def marked(mark: str) -> dict[int, str]:
    """The commands of processes with that mark, by number."""
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended just now, or is another user's
    return found
