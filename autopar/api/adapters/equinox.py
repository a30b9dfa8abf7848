"""equinox: a call with modules is taken as by `eqx.filter_jit`: arrays are traced, and everything else is static.

Functions, strings, flags and Python numbers in the arguments are part of what a plan is for; those in the result are
given back as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import jax

from autopar._compat import untyped_jax
from autopar.api.adapters.protocol import Args, CallParts, Keeps, Kwargs, Opened
from autopar.errors import SignatureMismatch
from autopar.trace.returned import Leaves, Returned

tree: Any = untyped_jax.tree


@dataclass(frozen=True)
class Static:
    """The leaves of a structure that are no arrays, by position; each with its type, as 1 is not True."""

    structure: Any
    leaves: tuple[tuple[int, type, Any], ...]

    def combined(self, arrays: Sequence[Any]) -> Any:
        """The structure, with `arrays` for all other leaves."""
        known = {position: value for position, _, value in self.leaves}
        rest = iter(arrays)
        return tree.unflatten(
            self.structure,
            [known[n] if n in known else next(rest) for n in range(self.structure.num_leaves)],
        )


@dataclass(frozen=True, eq=False)
class KnownResult:
    """What of a result is static; told by identity, as it need not be hashable."""

    static: Static


class Equinox:
    """The adapter."""

    library = "equinox"

    def is_object(self, value: Any) -> bool:
        """Whether `value` is a module."""
        return isinstance(value, _equinox().Module)

    def as_function(self, fn: Callable[..., Any]) -> CallParts | None:
        """A module is its own first argument."""
        return CallParts(type(fn).__call__, (fn,), {}) if self.is_object(fn) else None

    @contextmanager
    def open(self, parts: CallParts, keeps: Keeps) -> Generator[Opened]:
        """As the protocol says; modules do not change, so there is nothing to keep."""
        arguments, static = _partition((parts.args, parts.kwargs))
        try:
            hash(static)
        except TypeError as error:
            raise SignatureMismatch(
                f"an argument holds what is neither an array nor hashable: {error}"
            ) from error
        args, kwargs = arguments
        yield Opened(
            CallParts(_EquinoxFunction(parts.fn, static), args, kwargs), static, _close, _close
        )


class _EquinoxFunction:
    """The function of the arrays in its arguments."""

    def __init__(self, fn: Callable[..., Any], static: Static) -> None:
        self._fn = fn
        self._static = static
        update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Returned:
        args, kwargs = self._static.combined(tree.leaves((args, kwargs)))
        result, static = _partition(self._fn(*args, **kwargs))
        return Returned(result, Leaves((), ()), KnownResult(static))


def _close(returned: Returned, _args: Args, _kwargs: Kwargs) -> Any:
    static: Static = returned.known.static
    return static.combined(tree.leaves(returned.result))


def _partition(structure: Any) -> tuple[Any, Static]:
    """`structure` with None for all leaves that are no arrays, and these."""
    leaves, definition = tree.flatten(structure)
    held = [_is_array(leaf) for leaf in leaves]
    static = tuple(_static_leaf(n, leaf) for n, leaf in enumerate(leaves) if not held[n])
    arrays = [leaf if is_held else None for leaf, is_held in zip(leaves, held, strict=True)]
    return tree.unflatten(definition, arrays), Static(definition, static)


def _static_leaf(position: int, leaf: object) -> tuple[int, type, Any]:
    return position, type(leaf), leaf


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct) or bool(_equinox().is_array(leaf))


def _equinox() -> Any:
    return sys.modules["equinox"]
