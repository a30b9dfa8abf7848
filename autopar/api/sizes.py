"""Sizes as people write them: "30GiB" is a number of bytes.

By hand, as pydantic's ByteSize refuses "1e9" and reads "1,000" as 1 byte, "2.5e+3" as 2.5 exabytes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import isfinite
from numbers import Real
from typing import Any

from autopar.errors import InvalidOption

_UNITS = {"b": 1} | {
    f"{letter}{infix}b": base**power
    for power, letter in enumerate("kmgt", start=1)
    for infix, base in (("", 1000), ("i", 1024))
}


def parsed_size(text: str) -> int | None:
    """Bytes from "16GiB", "16GB", "512MiB" or "1e9"; None for another form, or for less than a byte.

    Units stand in either case; fractions of a byte are dropped.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\+?\d{1,2})?)\s*([a-z]*)\s*", text.lower())
    unit = _UNITS.get(found[2] or "b") if found else None
    size = int(Fraction(found[1]) * unit) if found and unit else 0
    return size or None


def limit_of(given: object) -> int:
    """The bytes of a memory limit, given as a number or as text.

    Raises:
      InvalidOption: for a limit that is no whole number >= 1, or text of another form.
    """
    size = parsed_size(given) if isinstance(given, str) else _whole(given)
    if size is None:
        raise InvalidOption(
            f"memory_limit_bytes is {given!r}: pass the bytes that one device may use, a whole number >= 1 or text "
            f'such as "16GiB", or None for all that it has'
        )
    return size


def _whole(given: Any) -> int | None:
    if isinstance(given, bool) or not isinstance(given, Real) or not isfinite(given):
        return None
    number: Any = given
    return int(number) if number >= 1 and number % 1 == 0 else None
