"""Opening: which adapter a call needs, and which functions are objects that are arguments of a function themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from autopar._compat import untyped_jax
from autopar.api.adapters import flax_linen
from autopar.api.adapters.equinox import Equinox
from autopar.api.adapters.flax_nnx import Nnx
from autopar.api.adapters.keras import Keras
from autopar.api.adapters.protocol import Adapter, Args, Kwargs, Parts

ADAPTERS: tuple[Adapter, ...] = (Nnx(), Keras(), Equinox())


def as_function(fn: Callable[..., Any]) -> Parts:
    """`fn` as a function and arguments that stand before those of each call: a module that is called is one of them.

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
    whole: Any = fn
    if isinstance(whole, partial) and adapter_of(whole.args, whole.keywords) is not None:
        return Parts(whole.func, whole.args, whole.keywords)
    return Parts(fn, (), {})


def adapter_of(args: Args, kwargs: Kwargs) -> Adapter | None:
    """The adapter of the library of which there are objects among these arguments, if there are any."""
    for adapter in _imported():
        leaves = untyped_jax.tree.leaves((args, kwargs), is_leaf=adapter.is_object)
        if any(map(adapter.is_object, leaves)):
            return adapter
    return None


def _imported() -> list[Adapter]:
    return [adapter for adapter in ADAPTERS if adapter.library in sys.modules]
