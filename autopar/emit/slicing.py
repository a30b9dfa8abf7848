"""Slices as XLA takes them: a start out of range is moved into it, and none is counted from the end."""

from __future__ import annotations

from typing import Any

from autopar._compat import untyped_jax


def slice_at(value: Any, start: Any, size: int, dim: int) -> Any:
    """`size` elements of `value` along `dim`, from `start` on, which is clamped.

    `lax.dynamic_slice` by itself takes a negative start for one that is counted from the end.
    """
    return untyped_jax.lax.dynamic_slice_in_dim(
        value, start, size, dim, allow_negative_indices=False
    )
