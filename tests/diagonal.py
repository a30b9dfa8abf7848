"""Tests in two directions, of which a diagonal is run each time and the others are slow."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest


def diagonal(rows: Collection[Any], columns: Collection[Any], *, quick: int = 1, first: int = 0) -> list[Any]:
    """Parameters (row, column): all pairs, of which each row has `quick` without the mark `slow`.

    The quick ones of the next row stand one column further, so that every column has some; those of the first row
    begin at column `first`.
    """
    return [
        pytest.param(row, column, marks=[pytest.mark.slow] * ((n - m - first) % len(columns) >= quick))
        for m, row in enumerate(rows)
        for n, column in enumerate(columns)
    ]
