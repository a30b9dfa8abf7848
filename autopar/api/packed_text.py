"""Packed text: text of many repetitions as few characters, and back."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode

MOST_BYTES = 1 << 28
"""Of an unpacked text: ten times that of the largest models. A damaged file must not fill the memory."""


def packed_text(text: str) -> str:
    """`text`, compressed (zlib) and in characters that JSON holds as they are (base64)."""
    return b64encode(zlib.compress(text.encode(), 9)).decode()


def unpacked_text(packed: str) -> str:
    """The text that `packed_text` packed.

    Raises:
      ValueError: it packed no such: says why.
    """
    try:
        data = b64decode(packed, validate=True)
        inflating = zlib.decompressobj()
        text = inflating.decompress(data, MOST_BYTES)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"its contents cannot be unpacked ({error})") from error
    if not inflating.eof:
        what = f"are more than {MOST_BYTES:,} bytes" if inflating.unconsumed_tail else "end too early"
        raise ValueError(f"its contents {what}")
    if inflating.unused_data:
        raise ValueError("its contents go on after their end")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"its contents are no text ({error})") from error
