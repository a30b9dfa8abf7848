"""Operators on typed PRNG keys, re-expressed on the keys' uint32 data.

A tensor of keys with shape s is held in the graph as its data, uint32[s + key_shape]. `decompose` gives for an
equation that touches keys a closed jaxpr that does the same on data, bit for bit: random operators by tracing
their implementation, operators that only move elements by mapping them over the trailing dims, and any other as
one call that wraps the data, runs the operator whole and unwraps its results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._mesh import without_shardings

Function = Callable[..., Any]

MOVES = frozenset({
    "broadcast_in_dim", "concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "pad", "reshape", "rev",
    "scatter", "slice", "split", "squeeze", "stack", "tile", "transpose", "unstack",
})  # fmt: skip
COMPARISONS = frozenset({"eq", "ne"})


def has_keys(eqn: Any) -> bool:
    """Whether an operand or a result of the equation is a tensor of typed keys."""
    return any(_compat.is_key_dtype(atom.aval.dtype) for atom in (*eqn.invars, *eqn.outvars))


def data_shape(aval: Any) -> tuple[int, ...]:
    """The shape that stands for `aval` in the graph: its own, or that of its key data."""
    if _compat.is_key_dtype(aval.dtype):
        return (*aval.shape, *_compat.key_implementation(aval.dtype).key_shape)
    return tuple(aval.shape)


def data_dtype(aval: Any) -> np.dtype[Any]:
    """The dtype that stands for `aval` in the graph: its own, or uint32 for keys."""
    return np.dtype(np.uint32) if _compat.is_key_dtype(aval.dtype) else np.dtype(aval.dtype)


def decompose(eqn: Any) -> Any | None:
    """A closed jaxpr on data that computes the equation, to be walked in its place; None: it must stay whole."""
    name = eqn.primitive.name
    if name == "select_n":
        function: Function = _chosen
    elif name in _RANDOM:
        function = _RANDOM[name](eqn)
    elif name in MOVES:
        function = _over_key_dims(eqn)
    elif name in COMPARISONS:
        function = _comparison(eqn)
    else:
        return None
    return _traced(eqn, function)


def run_whole(eqn: Any) -> Any:
    """A closed jaxpr on data that wraps the keys, runs the equation as it is, and unwraps its results."""

    def function(*data: Any) -> Any:
        wrapped = [
            _compat.as_keys(value, atom.aval) for value, atom in zip(data, eqn.invars, strict=True)
        ]
        results = eqn.primitive.bind(*wrapped, **_compat.bind_params(eqn.primitive, _params(eqn)))
        results = results if eqn.primitive.multiple_results else [results]
        return [_compat.key_data(value) for value in results]

    return _traced(eqn, function)


def _traced(eqn: Any, function: Function) -> Any:
    specs = [
        jax.ShapeDtypeStruct(data_shape(atom.aval), data_dtype(atom.aval)) for atom in eqn.invars
    ]
    with eqn.ctx.manager, _compat.without_mesh():
        return untyped_jax.make_jaxpr(function)(*specs)


def _params(eqn: Any) -> dict[str, Any]:
    """The parameters for operands that lie on no mesh."""
    return without_shardings(eqn.params)


def _mapped(function: Function, times: int) -> Function:
    for _ in range(times):
        function = untyped_jax.vmap(function)
    return function


def _random_bits(eqn: Any) -> Function:
    aval = eqn.invars[0].aval
    bits = _compat.key_implementation(aval.dtype).random_bits
    width = eqn.params["bit_width"]
    shape = eqn.params["shape"]
    return _mapped(partial(bits, bit_width=width, shape=shape), len(aval.shape))


def _random_split(eqn: Any) -> Function:
    aval = eqn.invars[0].aval
    split = _compat.key_implementation(aval.dtype).split
    return _mapped(partial(split, shape=eqn.params["shape"]), len(aval.shape))


def _random_seed(eqn: Any) -> Function:
    return _mapped(eqn.params["impl"].seed, len(eqn.invars[0].aval.shape))


def _random_fold_in(eqn: Any) -> Function:
    """Keys and messages broadcast against each other: equal ranks with sizes 1, or one of them a scalar."""
    implementation = _compat.key_implementation(eqn.invars[0].aval.dtype)
    shape = tuple(eqn.outvars[0].aval.shape)

    def function(keys: Any, messages: Any) -> Any:
        keys = jnp.broadcast_to(keys, (*shape, *implementation.key_shape))
        return _mapped(implementation.fold_in, len(shape))(keys, jnp.broadcast_to(messages, shape))

    return function


def _over_key_dims(eqn: Any) -> Function:
    """The primitive mapped over the trailing dims that hold a key's data."""

    def function(*data: Any) -> Any:
        return eqn.primitive.bind(*data, **_compat.bind_params(eqn.primitive, _params(eqn)))

    aval = next(atom.aval for atom in eqn.invars if _compat.is_key_dtype(atom.aval.dtype))
    axes = tuple(-1 if _compat.is_key_dtype(atom.aval.dtype) else None for atom in eqn.invars)
    for _ in _compat.key_implementation(aval.dtype).key_shape:
        function = untyped_jax.vmap(function, in_axes=axes, out_axes=-1)
    return function


def _chosen(which: Any, *cases: Any) -> Any:
    """The case that is chosen for each key: of all of its data."""
    return untyped_jax.lax.select_n(
        untyped_jax.lax.broadcast_in_dim(which, cases[0].shape, range(which.ndim)), *cases
    )


def _comparison(eqn: Any) -> Function:
    """Keys are equal where all of their data is."""
    aval = eqn.invars[0].aval
    elementwise = _over_key_dims(eqn)
    ndim = len(aval.shape)
    key_ndim = len(_compat.key_implementation(aval.dtype).key_shape)
    dims = tuple(range(ndim, ndim + key_ndim))
    reduce: Function = lax.reduce_and if eqn.primitive.name == "eq" else lax.reduce_or
    return lambda *data: reduce(elementwise(*data), dims)


_RANDOM: dict[str, Callable[[Any], Function]] = {
    "random_bits": _random_bits,
    "random_fold_in": _random_fold_in,
    "random_seed": _random_seed,
    "random_split": _random_split,
}
