"""Data for trials: operands of several kinds, so that what holds for one kind by accident fails for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from autopar.core.graph import TensorInfo

Rng = np.random.Generator
Shape = tuple[int, ...]
Draw = Callable[[Rng, Shape], Any]

_REALS: tuple[Draw, ...] = (
    lambda rng, shape: rng.normal(size=shape),
    lambda rng, shape: rng.uniform(0.1, 0.9, shape),
    lambda rng, shape: rng.uniform(1.5, 3, shape),
    lambda rng, shape: rng.integers(-2, 3, shape),
    lambda rng, shape: np.round(5 * rng.normal(size=shape)),
    lambda rng, shape: rng.uniform(-0.9, 0.9, shape),
)
_INTEGERS: tuple[Draw, ...] = (
    lambda rng, shape: rng.integers(0, 3, shape),
    lambda rng, shape: rng.integers(-9, 9, shape),
    lambda rng, shape: rng.integers(0, 120, shape),
    lambda rng, shape: rng.integers(-2, 2, shape),
    lambda rng, shape: rng.integers(1, 9, shape),
    lambda rng, shape: rng.integers(-100, 100, shape),
)
_DENSITIES = (0.5, 0.8, 0.0, 1.0, -0.2, 1.2)
KINDS = len(_REALS)
"""How many kinds of data there are; the same number for every element type."""


def draw(tensors: Sequence[TensorInfo], shapes: Sequence[Shape], number: int) -> list[Any]:
    """Operands of these shapes: of kind `number` modulo KINDS, seeded with `number`. Literals are as they are."""
    rng = np.random.default_rng(number)
    return [
        _operand(tensor, shape, rng, number % KINDS)
        for tensor, shape in zip(tensors, shapes, strict=True)
    ]


def _density(rng: Rng, shape: Shape, base: float) -> Any:
    """How likely each element is to be True: other for every index, so that some slices are all of one value
    however many elements they have.
    """
    density = np.full(shape, base)
    for dim, size in enumerate(shape):
        along = [size if d == dim else 1 for d in range(len(shape))]
        density = density + rng.uniform(-0.5, 0.5, along)
    return density


def _operand(tensor: TensorInfo, shape: Shape, rng: Rng, kind: int) -> Any:
    dtype = jnp.dtype(tensor.dtype)
    if tensor.literal is not None:
        return np.full(shape, tensor.literal).astype(dtype)
    if dtype == np.dtype(bool):
        return rng.random(shape) < _density(rng, shape, _DENSITIES[kind])

    if jnp.issubdtype(dtype, jnp.integer):
        values = np.asarray(_INTEGERS[kind](rng, shape))
        return (np.abs(values) if jnp.issubdtype(dtype, jnp.unsignedinteger) else values).astype(
            dtype
        )

    values = _REALS[kind](rng, shape)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * _REALS[kind](rng, shape)

    return np.asarray(values).astype(dtype)
