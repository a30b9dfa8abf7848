"""Opened: a function of arrays made of the user's own, which stands behind it."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from autopar.api.settings import Settings

Function = Callable[..., Any]


class Opened:
    """`function`, for calls of `own` under `settings`: its arguments are `leading` ones and then those of the call."""

    def __init__(self, function: Function, own: Function, settings: Settings, leading: int) -> None:
        self.own = own
        self.settings = settings
        self.leading = leading
        self._function = function
        update_wrapper(self, function)
        self.__name__ = getattr(own, "__name__", type(own).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function of arrays returns."""
        return self._function(*args, **kwargs)


def own_function(fn: Function, settings: Settings) -> tuple[Function, Settings]:
    """The user's function behind `fn`, and `settings` with the arguments counted as in its calls."""
    if not isinstance(fn, Opened):
        return fn, settings
    own = fn.settings
    return fn.own, settings.counted_as(own.static_argnums, own.donate_argnums)
