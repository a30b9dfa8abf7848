"""What messages of errors say in bytes."""

from __future__ import annotations

import re

_NEEDS = re.compile(r"any plan needs ([\d.]+) (B|KiB|MiB|GiB)(?: \(([\d,]+) bytes\))?")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def bytes_needed(message: str) -> int:
    """The bytes that an error says any plan needs; exact where the unit says it all."""
    found = _NEEDS.search(message)
    assert found is not None, message
    size, unit, exact = found.groups()
    return int(exact.replace(",", "")) if exact else int(float(size) * _UNITS[unit])
