"""Of parameters that ask the same, some are run each time and the others are slow."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest


def diagonal(
    rows: Collection[Any], columns: Collection[Any], *, quick: int = 1, first: int = 0
) -> list[Any]:
    """Parameters (row, column): all pairs, of which each row has `quick` without the mark `slow`.

    The quick ones of the next row stand one column further, so that every column has some; those of the first row
    begin at column `first`.
    """
    return [
        pytest.param(
            row, column, marks=[pytest.mark.slow] * ((n - m - first) % len(columns) >= quick)
        )
        for m, row in enumerate(rows)
        for n, column in enumerate(columns)
    ]


def one_quick(values: Collection[Any], which: int = 0) -> list[Any]:
    """All values as parameters, of which only the one at `which` is without the mark `slow`."""
    return [
        pytest.param(value, marks=[pytest.mark.slow] * (n != which))
        for n, value in enumerate(values)
    ]
