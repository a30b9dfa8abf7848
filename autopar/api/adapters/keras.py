"""Keras 3 on its JAX backend: variables are taken as arrays; layers, optimizers and metrics by what they hold.

Steps that are written as functions of variables (`stateless_call`, `stateless_apply`) take and give lists of arrays. A
function that is called with layers, metrics or optimizers may assign to their variables: they are changed behind it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

from autopar._compat import untyped_jax
from autopar.api.adapters.protocol import Args, CallParts, Keeps, Kwargs, Opened, named_leaves
from autopar.trace.returned import Leaves, Returned, held_leaves, put_back

tree: Any = untyped_jax.tree


@dataclass(frozen=True)
class SameObject:
    """An object, told by identity."""

    value: Any

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other.value is self.value


class Keras:
    """The adapter."""

    library = "keras"

    def is_object(self, value: Any) -> bool:
        """Whether `value` is a variable, or holds some."""
        return _is_variable(value) or _is_holder(value)

    def as_function(self, fn: Callable[..., Any]) -> CallParts | None:
        """A layer is its own first argument."""
        return CallParts(type(fn).__call__, (fn,), {}) if _is_holder(fn) else None

    @contextmanager
    def open(self, parts: CallParts, keeps: Keeps) -> Generator[Opened]:
        """As the protocol says."""
        named = named_leaves(parts.fn, parts.args, parts.kwargs, self.is_object)
        holders = [(name, value) for name, value in named if _is_holder(value)]
        variables = _variables([value for _, value in holders])
        owned = iter(variables)

        def opened(value: Any) -> Any:
            if _is_holder(value):
                own = next(owned)
                return Leaves([f"[{one.path!r}]" for one in own], [one.value for one in own])
            return value.value if _is_variable(value) else value

        args, kwargs = tree.map(opened, (parts.args, parts.kwargs), is_leaf=self.is_object)
        function = _KerasFunction(parts.fn, holders, variables, keeps)
        key = tuple((name, SameObject(value)) for name, value in holders)
        yield Opened(CallParts(function, args, kwargs), key, function.close, _shapes)


class _KerasFunction:
    """The function of the arrays that the variables hold."""

    def __init__(
        self,
        fn: Callable[..., Any],
        holders: Sequence[tuple[str, Any]],
        variables: Sequence[list[Any]],
        keeps: Keeps,
    ) -> None:
        self._fn = fn
        self._holders = holders
        self._variables = variables
        self._keeps = keeps
        update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Returned:
        arrays = _held(args, kwargs)
        objects = iter([value for _, value in self._holders])
        args, kwargs = put_back((args, kwargs), objects)
        owned = [
            (name, one)
            for (name, _), own in zip(self._holders, self._variables, strict=True)
            for one in own
        ]
        scope = _keras().StatelessScope(
            state_mapping=[(one, a) for (_, one), a in zip(owned, arrays, strict=True)]
        )
        with scope:
            result = self._fn(*args, **kwargs)

        now = [scope.get_current_value(one) for _, one in owned]
        changed = [
            n
            for n, (name, _) in enumerate(owned)
            if now[n] is not arrays[n] or not self._keeps(name)
        ]
        names = [f".{owned[n][0]}[{owned[n][1].path!r}]" for n in changed]
        return Returned(result, Leaves(names, [now[n] for n in changed]), tuple(changed))

    def close(self, returned: Returned, args: Args, kwargs: Kwargs) -> Any:
        """Assigns to the variables what they hold now."""
        now = dict(enumerate(_held(args, kwargs))) | dict(
            zip(returned.known, returned.changed.values, strict=True)
        )
        for n, variable in enumerate(one for own in self._variables for one in own):
            if variable.value is not now[n]:
                variable.assign(now[n])
        return returned.result


def _shapes(returned: Returned, _args: Args, _kwargs: Kwargs) -> Any:
    return returned.result


def _held(args: Args, kwargs: Kwargs) -> list[Any]:
    """The arrays of all holders among the arguments."""
    return [value for leaves in held_leaves((args, kwargs)) for value in leaves.values]


def _variables(holders: Sequence[Any]) -> list[list[Any]]:
    """The variables of each holder that none before it has."""
    seen: set[int] = set()
    found: list[list[Any]] = []
    for holder in holders:
        own = {id(variable): variable for variable in holder.variables if id(variable) not in seen}
        seen.update(own)
        found.append(list(own.values()))
    return found


def _is_variable(value: Any) -> bool:
    return isinstance(value, _keras().Variable)


def _is_holder(value: Any) -> bool:
    keras = _keras()
    kinds = (
        keras.layers.Layer,
        keras.optimizers.Optimizer,
        keras.metrics.Metric,
        keras.random.SeedGenerator,
    )
    return isinstance(value, kinds)


def _keras() -> Any:
    return sys.modules["keras"]
