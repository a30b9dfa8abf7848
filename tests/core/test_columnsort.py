"""Columnsort, of zeros and ones: what sorts these sorts anything. Devices are the rows of an array."""

from __future__ import annotations

import numpy as np
import pytest

from autopar.core.columnsort import DealtColumn, columns


def dealt(shape: DealtColumn, matrix: np.ndarray) -> np.ndarray:
    """Columns as rows of `matrix`, sorted as `core.columnsort` says."""
    parts = len(matrix)
    x = np.sort(matrix, 1)
    x = np.sort(x.reshape(parts, shape.dealt, parts).transpose(2, 0, 1).reshape(parts, -1), 1)
    x = np.sort(x.reshape(parts, parts, shape.dealt).transpose(1, 0, 2).reshape(parts, -1), 1)
    cut = shape.filled - shape.half
    for n in range(parts - 1):
        both = np.sort(np.concatenate([x[n, cut:], x[n + 1, :cut]]))
        x[n, cut:], x[n + 1, :cut] = both[: shape.half], both[shape.half :]
    return x


def is_sorted(shape: DealtColumn, parts: int, seed: int) -> bool:
    """Whether columns with any numbers of ones, and filled up with ones, are sorted."""
    ones = np.random.default_rng(seed).integers(0, shape.rows + 1, parts)
    matrix = np.ones((parts, shape.filled), int)
    matrix[:, : shape.rows] = [np.arange(shape.rows) < count for count in ones]
    return bool((np.diff(dealt(shape, matrix).ravel()) >= 0).all())


@pytest.mark.parametrize("parts", [2, 3, 4, 8])
@pytest.mark.parametrize("extra", [0, 1])
def test_zeros_and_ones_are_sorted_where_columns_are_long_enough(parts: int, extra: int) -> None:
    # the least that is filled up to enough
    rows = parts * (-(-2 * (parts - 1) ** 2 // parts) - 1) + 1 + extra
    shape = columns(rows * parts, parts)
    assert shape is not None
    assert all(is_sorted(shape, parts, seed) for seed in range(200))


def test_the_check_tells_columns_that_are_too_short() -> None:
    short = DealtColumn(rows=24, filled=24, dealt=3, half=12, late=0, moved=0)
    assert not all(is_sorted(short, 8, seed) for seed in range(200))


def test_shorter_columns_are_not_sorted_so() -> None:
    """Of eight devices that hold 90 elements each; with one more each, filled up to 96, nothing is sure either."""
    assert columns(8 * 90, 8) is None
    assert columns(8 * 97, 8) == DealtColumn(97, 104, 13, 52, 7, 49)
    assert columns(0, 4) is None
