"""Checkpoints: each server's file of a version, and a manifest that names the versions which all servers have.

    folder/manifest.json                 the latest last
    folder/00000100/server-0-of-2.npz    what server 0 held after 100 updates

A file is written beside its place, synced, and renamed: what has its name is whole. The manifest is written when all
servers' files are there, so a version in it can be restored.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

import numpy as np

from autopar.errors import ParameterServerError
from autopar.parameter_server.records import Saved
from autopar.parameter_server.sharding import Shard

KEPT = 2
"""Versions: the latest, and the one before in case a file of it is damaged."""
MANIFEST = "manifest.json"
Array = np.ndarray[Any, Any]


def path_of(folder: Path, version: int, server: int, servers: int) -> Path:
    """The file of a server's part of a version."""
    return folder / f"{version:08}" / f"server-{server}-of-{servers}.npz"


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """The arrays, by name, in a file that is whole once it has its name.

    Raises:
      ParameterServerError: it cannot be written.
    """
    head = [{"name": name, "dtype": str(array.dtype)} for name, array in arrays.items()]
    plain = [np.asarray(array, order="C") for array in arrays.values()]
    # numpy's files have no bfloat16 and its like: bytes, with the type beside them
    data = {str(n): array.view(_plain(array)) for n, array in enumerate(plain)}
    text = np.frombuffer(json.dumps(head).encode(), np.uint8)
    _write(path, lambda file: np.savez(file, head=text, allow_pickle=False, **data))


def read_arrays(path: Path) -> dict[str, Array]:
    """What `write_arrays` wrote.

    Raises:
      ParameterServerError: the file is missing or damaged.
    """
    try:
        with path.open("rb") as opened, np.load(opened) as file:
            head = json.loads(file["head"].tobytes())
            return {
                one["name"]: file[str(n)].view(np.dtype(one["dtype"])) for n, one in enumerate(head)
            }
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise ParameterServerError(f"{path} cannot be read: {error}") from error


class Manifest:
    """The versions that all servers have saved, and of what job."""

    def __init__(self, folder: Path, placed: Sequence[Sequence[Shard]]) -> None:
        self.folder = folder
        self._job = [[shard.key for shard in shards] for shards in placed]

    def versions(self) -> list[Saved]:
        """The latest first.

        Raises:
          ParameterServerError: the checkpoints are of parameters that are placed otherwise.
        """
        path = self.folder / MANIFEST
        if not path.exists():
            return []

        found = json.loads(path.read_text(encoding="utf-8"))
        if found["placed"] != self._job:
            raise ParameterServerError(
                f"{path} is of {len(found['placed'])} servers with other shards than this job's {len(self._job)}: take "
                "another folder, or the parameters, optimizer and number of servers that it is of"
            )
        return [
            Saved(one["version"], {int(w): clock for w, clock in one["clocks"].items()})
            for one in reversed(found["versions"])
        ]

    def add(self, saved: Saved) -> None:
        """A version is complete; the oldest beyond those kept are removed."""
        others = [one for one in self.versions() if one.version != saved.version]
        kept = sorted([saved, *others], key=lambda one: -one.version)[:KEPT]
        self._write(kept)

        for path in self.folder.iterdir():
            is_version = path.is_dir() and path.name.isdigit()
            if is_version and int(path.name) < kept[-1].version:
                shutil.rmtree(path)

    def roll_back(self, saved: Saved) -> None:
        """All goes on from that version: what was saved after it is not continued."""
        self._write([one for one in self.versions() if one.version <= saved.version])

    def _write(self, versions: Sequence[Saved]) -> None:
        """The versions, the latest first."""
        oldest_first = [asdict(one) for one in reversed(versions)]
        text = json.dumps({"placed": self._job, "versions": oldest_first}, indent=1)
        _write(self.folder / MANIFEST, lambda file: file.write(text.encode()))


def _write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """A file that is whole once it has its name, which outlives a crash."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _sync(path.parent)

    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise ParameterServerError(f"cannot write {path}: {error}") from error


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _plain(array: Array) -> np.dtype[Any]:
    """A type of numpy's own with as many bytes."""
    return array.dtype if array.dtype.isbuiltin == 1 else np.dtype(f"u{array.dtype.itemsize}")
