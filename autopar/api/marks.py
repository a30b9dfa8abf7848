"""Marks: which arguments are static and which are donated, by position and by name, as jax.jit tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

from autopar.api.call import Parameters
from autopar.api.options import Settings
from autopar.errors import TraceError
from autopar.trace.arguments import CARRIED, function_name


def marked(fn: Callable[..., Any], settings: Settings) -> Settings:
    """`settings` with what is static or donated known by positions and by names.

    If only one of both is given, the other follows from the signature of `fn`, as in jax.jit; negative positions count
    from the last parameter. What is donated by `CARRIED` stays that.

    Raises:
      TraceError: for a position or a name that `fn` does not have, an argument that is static and donated, or names
        beside `CARRIED`.
    """
    parameters = Parameters.of(fn)
    name = function_name(fn)
    static_nums, static_names = _marks(
        parameters, name, "static", settings.static_argnums, settings.static_argnames
    )
    if settings.donate_argnums == CARRIED:
        _check_alone(settings.donate_argnames)
        return replace(settings, static_argnums=static_nums, static_argnames=static_names)

    donate_nums, donate_names = _marks(
        parameters, name, "donate", settings.donate_argnums, settings.donate_argnames
    )
    for both in (set(static_nums) & set(donate_nums), set(static_names) & set(donate_names)):
        if both:
            raise TraceError(f"argument {min(both)} is both static and donated")

    return replace(
        settings,
        static_argnums=static_nums,
        static_argnames=static_names,
        donate_argnums=donate_nums,
        donate_argnames=donate_names,
    )


def _check_alone(names: object) -> None:
    if names:
        raise TraceError(
            f"donate_argnums is {CARRIED!r}, and donate_argnames {names!r}: pass one of both"
        )


def _marks(
    parameters: Parameters | None, function: str, what: str, numbers: object, names: object
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    nums = _whole_numbers(numbers, f"{what}_argnums")
    words = _words(names, f"{what}_argnames")
    if parameters is None:
        return nums, words

    count = len(parameters.positional)
    for number in nums:
        if not parameters.takes_more and not -count <= number < count:
            raise TraceError(
                f"{what}_argnums names argument {number}, but {function} takes {count} positional arguments"
            )

    for word in words:
        if not parameters.takes(word):
            raise TraceError(
                f"{what}_argnames names argument {word!r}, which {function} does not take by name"
            )

    nums = tuple(n + count if n < 0 and not parameters.takes_more else n for n in nums)
    if nums and words:
        return nums, words

    if nums:
        known = [parameters.positional[n] for n in nums if 0 <= n < count]
        return nums, tuple(word for word in known if parameters.takes(word))

    return tuple(
        parameters.positional.index(word) for word in words if word in parameters.positional
    ), words


def _whole_numbers(given: object, what: str) -> tuple[int, ...]:
    several = isinstance(given, Iterable)
    numbers = tuple(cast("Iterable[object]", given)) if several else (given,)
    if not all(isinstance(number, int) for number in numbers):
        other = f", or {CARRIED!r}" if what == "donate_argnums" else ""
        raise TraceError(
            f"{what} is {given!r}: pass the positions of arguments, whole numbers{other}"
        )
    return cast("tuple[int, ...]", numbers)


def _words(given: object, what: str) -> tuple[str, ...]:
    words = (given,) if isinstance(given, str) else tuple(cast("Iterable[object]", given))
    if not all(isinstance(word, str) for word in words):
        raise TraceError(f"{what} is {given!r}: pass the names of arguments")
    return cast("tuple[str, ...]", words)
