"""flax.linen: a module bound to its variables is a function of these.

Train states and variables are pytrees, and taken as they are.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any

from autopar.api.adapters.protocol import CallParts
from autopar.errors import TraceError

LIBRARY = "flax.linen"


def as_function(fn: Callable[..., Any]) -> CallParts | None:
    """`apply` of a bound module, or of a method of one, with its variables as first argument; else None.

    Raises:
      TraceError: if the module may change its variables, which would be lost.
    """
    module: Any = fn.__self__ if isinstance(fn, MethodType) else fn
    if not isinstance(module, sys.modules[LIBRARY].Module) or module.scope is None:
        return None
    if module.scope.mutable:
        raise TraceError(
            f"{type(module).__name__} is bound with collections that it may change, {module.scope.mutable!r}: compile "
            f"a function of the variables that calls module.apply(variables, ..., mutable=...) instead"
        )
    unbound, variables = module.unbind()
    return CallParts(_Apply(unbound, fn), (variables,), {})


class _Apply:
    """A module applied to its variables: a method's signature, with these in the place of the module."""

    def __init__(self, module: Any, fn: Any) -> None:
        self._module = module
        self._method = fn.__func__ if isinstance(fn, MethodType) else type(module).__call__
        update_wrapper(self, self._method)
        variables = inspect.Parameter("variables", inspect.Parameter.POSITIONAL_ONLY)
        own = inspect.signature(self._method)
        _, *rest = own.parameters.values()
        self.__signature__ = own.replace(parameters=[variables, *rest])

    def __call__(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        return self._module.apply(variables, *args, method=self._method, **kwargs)
