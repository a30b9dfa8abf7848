"""Trial: does an operator commute with a split? It is run whole and on slices, and the results are put together.

passes:   concatenate(f(x_1), ..., f(x_p)) = f(x)          where the result has the split dim too
reduced:  f(x_1) + ... + f(x_p) = f(x), or their maximum, or their minimum          where it has not
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from autopar.core.graph import TensorInfo
from autopar.core.placement import Kind
from autopar.discover.data import KINDS, draw
from autopar.discover.runnable import Runnable, Shape

Array = np.ndarray[Any, Any]
DRAWS = 2 * KINDS
"""How many draws a split must survive for each shape and number of parts."""
INFORMATIVE = 3
"""How many draws must have told something, at least one of them for each number of parts.

That is: results that are neither constant, nor equal for all slices.
"""
_MOST_PARTS = 16
_COMBINE: dict[Kind, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class TrialSplit:
    """One dim of some operands, and of some results, that are claimed to be the same index (None: has it not)."""

    ins: tuple[int | None, ...]
    outs: tuple[int | None, ...]


class Trials:
    """Runs of one operator on operands of the same shapes; what it gives whole is computed once for each draw."""

    def __init__(
        self, runnable: Runnable, tensors: Sequence[TensorInfo], shapes: tuple[Shape, ...]
    ) -> None:
        self._runnable = runnable
        self._tensors = tensors
        self._whole: dict[int, tuple[list[Any], tuple[Array, ...] | None]] = {}
        self.shapes = shapes

    def kinds(self, split: TrialSplit) -> frozenset[Kind]:
        """How the results that lack the split dim may be combined, for every draw and number of parts.

        Every kind where all results have the dim and pass. None if `split` does not hold, or the draws told too little.
        """
        operand = next(n for n, dim in enumerate(split.ins) if dim is not None)
        size = self.shapes[operand][split.ins[operand] or 0]
        left: frozenset[Kind] = frozenset(_COMBINE)
        told: list[int] = []
        for parts in _divisors(size):
            told.append(0)
            for number in range(DRAWS):
                held, informative = self._once(split, parts, number)
                left &= held
                told[-1] += informative
                if not left:
                    return left

        return left if told and min(told) > 0 and sum(told) >= INFORMATIVE else frozenset()

    def _once(self, split: TrialSplit, parts: int, number: int) -> tuple[frozenset[Kind], bool]:
        operands, whole = self._run_whole(number)
        if whole is None:
            return frozenset(), False

        slices = [
            np.split(operand, parts, dim) if dim is not None else [operand] * parts
            for operand, dim in zip(operands, split.ins, strict=True)
        ]
        local = self._runnable.run([*zip(*slices, strict=True)])
        if local is None:
            return frozenset(), False

        held: frozenset[Kind] = frozenset(_COMBINE)
        informative = True
        for n, (full, dim) in enumerate(zip(whole, split.outs, strict=True)):
            pieces = [result[n] for result in local]
            held &= _passes(full, pieces, dim) if dim is not None else _reduces(full, pieces)
            informative = informative and _tells(full, pieces)

        return held, informative

    def _run_whole(self, number: int) -> tuple[list[Any], tuple[Array, ...] | None]:
        if number not in self._whole:
            operands = draw(self._tensors, self.shapes, number)
            results = self._runnable.run([operands])
            self._whole[number] = operands, None if results is None else results[0]
        return self._whole[number]


def _divisors(size: int) -> list[int]:
    """The numbers of parts that are tried: all for small sizes, else those up to a bound."""
    return [parts for parts in range(2, min(size, _MOST_PARTS) + 1) if size % parts == 0]


def _passes(whole: Array, pieces: list[Array], dim: int) -> frozenset[Kind]:
    """Every kind, if the slices of the result make the whole: what is to be combined is another result."""
    return frozenset(_COMBINE) if _equal(np.concatenate(pieces, dim), whole, whole) else frozenset()


def _reduces(whole: Array, pieces: list[Array]) -> frozenset[Kind]:
    if any(piece.shape != whole.shape for piece in pieces):
        return frozenset()

    kinds: list[Kind] = (
        ["sum"]
        if whole.dtype.kind == "c"
        else ["max", "min"]
        if whole.dtype == bool
        else [*_COMBINE]
    )
    scale = np.abs(np.stack([piece.astype(_wide(piece)) for piece in pieces])).sum(0)
    with np.errstate(all="ignore"):
        return frozenset(
            kind for kind in kinds if _equal(reduce(_COMBINE[kind], pieces), whole, scale)
        )


def _tells(whole: Array, pieces: list[Array]) -> bool:
    """Whether this draw could have failed: the result is finite and varies, the slices differ from each other."""
    wide = whole.astype(_wide(whole))
    finite = np.isfinite(wide)
    if finite.mean() < 0.5:
        return False
    varies = wide.size == 1 or np.unique(wide[finite]).size > 1
    return bool(varies) and any(
        not np.array_equal(piece, pieces[0], equal_nan=True) for piece in pieces[1:]
    )


def _equal(found: Array, expected: Array, scale: Array) -> bool:
    if found.shape != expected.shape:
        return False
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        return bool(np.array_equal(found, expected))

    size = np.abs(scale.astype(_wide(scale)))
    largest = float(np.max(size[np.isfinite(size)], initial=0.0))
    info = cast("Any", jnp).finfo(expected.dtype)
    tolerance = 64 * float(info.eps) if expected.dtype.itemsize > 2 else 0.03
    found = found.astype(_wide(found))
    expected = expected.astype(_wide(expected))
    return bool(
        np.allclose(found, expected, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
    )


def _wide(array: Array) -> Any:
    if array.dtype.kind == "c":
        return np.complex128
    return np.float64 if jnp.issubdtype(array.dtype, jnp.inexact) else np.int64
