"""Leaves: the arrays that a trace has for what users pass and get, keys and weak types among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from autopar._compat import untyped_jax, weakly_typed
from autopar.trace import Traced

Array = jax.Array


def given(traced: Traced, leaves: Sequence[Any], start: int = 0) -> list[Array]:
    """The flat inputs, from the one at `start` on, that these leaves are: keys as their data."""
    keys = dict(traced.key_inputs)
    avals = traced.input_avals[start : start + len(leaves)]
    return [
        untyped_jax.random.key_data(leaf)
        if n in keys
        else untyped_jax.numpy.asarray(leaf, aval.dtype)
        for n, (leaf, aval) in enumerate(zip(leaves, avals, strict=True), start)
    ]


def returned(traced: Traced, values: Sequence[Array]) -> list[Any]:
    """The leaves that these flat results are: keys and weak types are those of the function."""
    keys = dict(traced.key_outputs)
    results: list[Any] = []
    for n, (value, aval) in enumerate(zip(values, traced.output_avals, strict=True)):
        if n in keys:
            results.append(untyped_jax.random.wrap_key_data(value, impl=keys[n]))
        else:
            results.append(weakly_typed(value) if aval.weak_type else value)
    return results
