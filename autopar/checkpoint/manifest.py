"""Manifest: the files of a checkpoint with their sizes and digests, by which damage is found before anything is read.

The formats below check parts of what they hold only: a flipped bit in an array would be trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any

MANIFEST = "autopar_files.json"
# orbax writes these once more when it commits the checkpoint, behind the manifest
_COMMITS = ("_CHECKPOINT_METADATA", "commit_success.txt")


def write_manifest(directory: Path) -> None:
    """Writes the manifest of all files that are in `directory`."""
    files = {name: _entry(directory / name) for name in _files(directory)}
    (directory / MANIFEST).write_text(json.dumps(files, indent=0, sort_keys=True), encoding="utf-8")


def damage_in(directory: Path, part: int, parts: int) -> str:
    """What is wrong with the checkpoint in `directory`; "" if nothing is.

    Of its files each of `parts` processes looks into its own `part`.
    """
    try:
        listed: Any = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        entries = sorted((name, size, digest) for name, (size, digest) in listed.items())
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return f"{MANIFEST}, which names its files, cannot be read ({error})"
    return _damage_of(directory, entries[part::parts])


def _damage_of(directory: Path, entries: Sequence[tuple[str, int, str]]) -> str:
    for name, size, digest in entries:
        path = directory / name
        try:
            found, found_digest = _entry(path)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
        if found != size:
            return f"{name} has {found} bytes, {size} were written"
        if found_digest != digest:
            return f"{name} has other bytes than were written"
    return ""


def _files(directory: Path) -> list[str]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    names = [path.relative_to(directory).as_posix() for path in paths]
    return sorted(name for name in names if name not in (*_COMMITS, MANIFEST))


def _entry(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
        return file.tell(), digest
