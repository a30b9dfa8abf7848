"""The environment in which benchmarks on CPU start anew, so that freed memory is kept."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.kept_memory import KEEPING, keep_memory

SIZE = 32_000_000
TOUCHING = """
import resource
for _ in range(20):
    b"x" * SIZE
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    b"x" * SIZE
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_process_starts_anew_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str], dict[str, str]]] = []

    def execve(path: str, argv: list[str], environment: dict[str, str]) -> None:
        started.append((path, argv, environment))

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(sys, "argv", ["benchmarks/accuracy.py", "--models", "mlp"])
    for name in KEEPING:
        monkeypatch.delenv(name, raising=False)
    keep_memory("benchmarks.accuracy")
    [(path, argv, environment)] = started
    assert path == sys.executable
    assert argv == [sys.executable, "-m", "benchmarks.accuracy", "--models", "mlp"]
    assert {name: environment[name] for name in KEEPING} == KEEPING
    assert environment["PATH"] == os.environ["PATH"]
    for name, value in KEEPING.items():
        monkeypatch.setenv(name, value)
    keep_memory("benchmarks.accuracy")
    assert len(started) == 1
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "65536")
    keep_memory("benchmarks.accuracy")
    assert started[1] == started[0]


@pytest.mark.skipif(sys.platform != "linux", reason="the variables are glibc's")
def test_freed_memory_is_kept() -> None:
    def faults(**environment: Any) -> int:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")
        }
        command = [sys.executable, "-c", TOUCHING.replace("SIZE", str(SIZE))]
        return int(
            subprocess.run(command, env=clean | environment, capture_output=True, check=True).stdout
        )

    pages = 20 * SIZE // resource.getpagesize()
    assert faults(MALLOC_MMAP_THRESHOLD_="1000000") > 0.9 * pages
    assert faults(**KEEPING) < 0.01 * pages
