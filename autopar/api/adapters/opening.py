"""Opening: which adapter a call needs, and which functions are objects that are arguments of a function themselves."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import jax

from autopar._compat import untyped_jax
from autopar.api.adapters import flax_linen
from autopar.api.adapters.equinox import Equinox
from autopar.api.adapters.flax_nnx import Nnx
from autopar.api.adapters.keras import Keras
from autopar.api.adapters.protocol import Adapter, Args, CallParts, Kwargs
from autopar.errors import ConstantsWarning, users_level

ADAPTERS: tuple[Adapter, ...] = (Nnx(), Keras(), Equinox())


def as_function(fn: Callable[..., Any]) -> CallParts:
    """`fn` as a function and arguments that stand before those of each call: a module that is called is one of them.

    So is any other pytree. Arrays of an object that is none are constants, as in jax.jit, of which it warns.

    Raises:
      TraceError: for one that changes what it is bound to.
    """
    makers = [adapter.as_function for adapter in _imported()]
    if flax_linen.LIBRARY in sys.modules:
        makers.append(flax_linen.as_function)
    for make in makers:
        found = make(fn)
        if found is not None:
            return found
    return _as_pytree(fn)


def _as_pytree(fn: Any) -> CallParts:
    if _is_one(fn, partial) and adapter_of(fn.args, fn.keywords) is not None:
        return CallParts(fn.func, fn.args, fn.keywords)
    if callable(fn) and not untyped_jax.tree_util.all_leaves([fn]):
        return CallParts(type(fn).__call__, (fn,), {})
    _tell_constants(getattr(fn, "__self__", fn))
    return CallParts(fn, (), {})


def _tell_constants(owner: Any) -> None:
    """Warns of arrays that an object holds whose methods are called."""
    fields: dict[str, Any] = (
        {} if isinstance(owner, FunctionType | type) else getattr(owner, "__dict__", {})
    )
    held = [
        name
        for name, value in fields.items()
        if any(map(_is_array, untyped_jax.tree.leaves(value)))
    ]

    if held:
        kind = type(owner).__name__
        warnings.warn(
            f"a {kind} holds arrays ({', '.join(held)}), which will be constants of the program: what is assigned to "
            f"them later is not seen. Compile a function that takes them, or make {kind} a pytree "
            f"(jax.tree_util.register_dataclass).",
            ConstantsWarning,
            stacklevel=users_level(),
        )


def _is_one(value: Any, kind: type) -> bool:
    return isinstance(value, kind)


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, jax.Array)


def adapter_of(args: Args, kwargs: Kwargs) -> Adapter | None:
    """The adapter of the library of which there are objects among these arguments, if there are any."""
    for adapter in _imported():
        leaves = untyped_jax.tree.leaves((args, kwargs), is_leaf=adapter.is_object)
        if any(map(adapter.is_object, leaves)):
            return adapter
    return None


def _imported() -> list[Adapter]:
    return [adapter for adapter in ADAPTERS if adapter.library in sys.modules]
