"""The protocol of adapters: a call with objects becomes one with arrays, and what it changed is put back into them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from autopar._compat import untyped_jax
from autopar.trace.arguments import positional_names

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Keeps = Callable[[str], bool]
"""Whether the arrays of an object among the arguments, by its name, are of use behind the call: it is not donated."""


Close = Callable[[Any, Args, Kwargs], Any]


@dataclass(frozen=True, eq=False)
class CallParts:
    """A function and its arguments."""

    fn: Callable[..., Any]
    args: Args
    kwargs: Kwargs


@dataclass(frozen=True, eq=False)
class Opened:
    """A call with arrays for objects: the pure `parts.fn` computes from `parts.args` what the call does.

    `key` is all that `parts.fn` depends on besides its arguments. `close` makes the call's result of what `parts.fn`
    returned and of the arguments as they lie now, and changes the objects as the call would have. `shapes` makes the
    same of the shapes of what is returned, and changes nothing.
    """

    parts: CallParts
    key: Hashable
    close: Close
    shapes: Close


class Adapter(Protocol):
    """One library. `library` is the module that the user has to have imported for any of its objects to be there."""

    @property
    def library(self) -> str:
        """The name of that module."""
        ...

    def is_object(self, value: Any) -> bool:
        """Whether an argument, or a part of one, is an object that JAX does not take as the library's own jit does."""
        ...

    def as_function(self, fn: Callable[..., Any]) -> CallParts | None:
        """A function and leading arguments that are the same as calling `fn`, an object of the library; else None."""
        ...

    def open(self, parts: CallParts, keeps: Keeps) -> AbstractContextManager[Opened]:
        """The call with arrays for its objects, to be closed within the context."""
        ...


def named_leaves(
    fn: Any, args: Args, kwargs: Kwargs, is_leaf: Callable[[Any], bool]
) -> list[tuple[str, Any]]:
    """The leaves of the arguments of `fn` with their names, in the order of `jax.tree.leaves((args, kwargs))`."""
    positional = positional_names(fn, len(args))
    keyed, _ = untyped_jax.tree_util.tree_flatten_with_path((args, kwargs), is_leaf=is_leaf)
    return [(_name(path, positional), leaf) for path, leaf in keyed]


def _name(path: Any, positional: list[str]) -> str:
    side = path[0].idx
    which = path[1]
    inside = untyped_jax.tree_util.keystr(path[2:])
    return f"{which.key}{inside}" if side else f"{positional[which.idx]}{inside}"
