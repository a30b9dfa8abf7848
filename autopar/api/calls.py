"""Calls: the calls of a compiled function, as calls of functions of arrays.

Most are such already. Objects of libraries are opened (`adapters`), a module that is compiled itself is an argument,
and values of static arguments that are passed by name are part of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from autopar.api.adapters.opening import adapter_of, as_function
from autopar.api.adapters.protocol import Args, CallParts, Close, Kwargs
from autopar.api.bound import ArrayFunction
from autopar.api.call import check_hashable, kind_of
from autopar.api.marks import marked
from autopar.api.options import Function, Settings
from autopar.api.plan import Plan
from autopar.api.pure import Pure
from autopar.api.runner import UNKNOWN
from autopar.trace.arguments import CARRIED, DonateArgnums, positional_names, positions

Attempt = Callable[[Args, Kwargs], Any]


@dataclass(frozen=True, eq=False)
class OpenedCall:
    """A call of a function of arrays.

    `close` makes the user's result of what it returned and its arguments, and changes these; `shapes` makes that of
    ShapeDtypeStructs of what it returns, and changes nothing.
    """

    pure: Pure
    args: Args
    kwargs: Kwargs
    close: Close
    shapes: Close


class Calls:
    """A function of the user's, with the functions of arrays that its calls are of."""

    def __init__(self, fn: Function, settings: Settings, given: Plan | None) -> None:
        self._fn = fn
        self._settings = marked(fn, settings)
        self._given = given
        self._parts = as_function(fn)
        self._adapter = adapter_of(self._parts.args, self._parts.kwargs)
        self._pures: dict[Hashable, Pure] = {}
        self.attempt: Attempt = _know_nothing
        """The results of a call, if there was one of arrays that it fits: such are looked into no further."""

    @property
    def pures(self) -> tuple[Pure, ...]:
        """The functions of arrays that there were calls of."""
        return tuple(self._pures.values())

    def devices(self) -> tuple[Any, ...] | None:
        """The devices that were asked for, if any were."""
        return self._settings.own_devices()

    def forget(self) -> None:
        """Forgets them."""
        self._pures.clear()
        self.attempt = _know_nothing

    def call(self, args: Args, kwargs: Kwargs) -> Any:
        """The results for arrays and objects."""
        with self.opened(args, kwargs) as call:
            if self._adapter is None:
                return call.pure.dispatch(call.args, call.kwargs)
            placed_args, placed_kwargs = call.pure.dispatch.in_place(call.args, call.kwargs)
            returned = call.pure.dispatch(placed_args, placed_kwargs)
            return call.close(returned, placed_args, placed_kwargs)

    def call_in_trace(self, args: Args, kwargs: Kwargs) -> Any:
        """The results under a trace of JAX."""
        with self.opened(args, kwargs) as call:
            return call.close(call.pure(*call.args, **call.kwargs), call.args, call.kwargs)

    @contextmanager
    def opened(self, args: Args, kwargs: Kwargs) -> Generator[OpenedCall]:
        """The call with arrays for objects, to be closed within the context."""
        parts, static = self._whole(args, kwargs)
        self._adapter = self._adapter or adapter_of(parts.args, parts.kwargs)
        if self._adapter is None:
            yield OpenedCall(
                self._pure(parts.fn, static), parts.args, parts.kwargs, _as_it_is, _as_it_is
            )
            return
        with self._adapter.open(parts, partial(self._keeps, parts)) as opened:
            pure = self._pure(opened.parts.fn, (*static, opened.key))
            yield OpenedCall(
                pure, opened.parts.args, opened.parts.kwargs, opened.close, opened.shapes
            )

    def _whole(self, args: Args, kwargs: Kwargs) -> tuple[CallParts, tuple[Hashable, ...]]:
        """The function with all arguments but the static ones passed by name, which are part of it; and these."""
        named = {**self._parts.kwargs, **kwargs}
        static = {name: named.pop(name) for name in self._settings.static_argnames if name in named}
        key: list[Hashable] = []
        for name, value in static.items():
            check_hashable(value, repr(name), "static_argnames")
            key.append((name, kind_of(value), value))
        fn = partial(self._parts.fn, **static) if static else self._parts.fn
        return CallParts(fn, (*self._parts.args, *args), named), tuple(key)

    def _pure(self, fn: Function, key: tuple[Hashable, ...]) -> Pure:
        if key not in self._pures:
            leading = len(self._parts.args)
            is_own = not key and fn is self._fn
            function = fn if is_own else ArrayFunction(fn, self._fn, self._settings, leading)
            self._pures[key] = Pure(function, self._shifted(leading), self._given)
            if is_own:
                self.attempt = self._pures[key].dispatch.attempt
        return self._pures[key]

    def _shifted(self, count: int) -> Settings:
        """The settings of a function with `count` arguments more in front."""
        if not count:
            return self._settings
        static = _shifted(self._settings.static_argnums, count)
        return self._settings.counted_as(static, _donated(self._settings.donate_argnums, count))

    def _keeps(self, parts: CallParts, name: str) -> bool:
        """Whether what stands under this name in the arguments is there behind the call: not donated."""
        count = len(parts.args)
        before = len(self._parts.args)
        numbers = positions(
            _donated(self._settings.donate_argnums, before), count, "donate_argnums"
        )
        names = positional_names(parts.fn, count)
        donated = [*(names[n] for n in numbers), *self._settings.donate_argnames]
        return not any(name == one or name.startswith((f"{one}[", f"{one}.")) for one in donated)


def _know_nothing(_args: Args, _kwargs: Kwargs) -> Any:
    return UNKNOWN


def _shifted(numbers: Any, count: int) -> tuple[int, ...]:
    given = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return tuple(n + count if n >= 0 else n for n in given)


def _donated(numbers: DonateArgnums, count: int) -> DonateArgnums:
    return CARRIED if numbers == CARRIED else _shifted(numbers, count)


def _as_it_is(returned: Any, _args: Args, _kwargs: Kwargs) -> Any:
    return returned
