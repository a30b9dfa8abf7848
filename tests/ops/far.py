"""Indices at their edges and far beyond them, of every integer type; shapes with and without elements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from tests.ops.build import Arg

WIDTHS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
INTEGERS = st.sampled_from(WIDTHS)


@dataclass(frozen=True)
class Places(Arg):
    """Places in a dim of `size` elements: half of them inside, the others about its ends, or far beyond both.

    All of them are numbers of the element type, which may end before the dim does.
    """

    size: int = 1

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        info = np.iinfo(self.dtype)
        inside = rng.integers(0, max(1, min(self.size, int(info.max))), self.shape)
        edges = np.array(
            [place for place in edges_of(self.size) if info.min <= place <= info.max], self.dtype
        )
        return np.where(
            rng.random(self.shape) < 0.5, inside.astype(self.dtype), rng.choice(edges, self.shape)
        )


def edges_of(size: int) -> list[int]:
    """About both ends of a dim, about them once more as if counted from the end, and the ends of the element types."""
    about = [
        n + m
        for n in (-3 * size, -2 * size, -size, 0, size, 2 * size, 40 * size)
        for m in (-1, 0, 1)
    ]
    widest = [
        sign * 2**bits + m
        for bits in (7, 8, 15, 16, 31, 32, 63, 64)
        for sign in (-1, 1)
        for m in (-1, 0, 1)
    ]
    return [*about, *widest, 2**32 + size - 1]
