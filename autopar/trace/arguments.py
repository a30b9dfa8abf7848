"""Arguments: what the user passes, as flat named inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._mesh import aval_of, spec_of
from autopar.errors import TraceError
from autopar.trace.flat import FlatFunction
from autopar.trace.keys import data_dtype, data_shape

Donated = Sequence[int | str]
"""Positions of arguments, and names of those passed by name."""
CARRIED: Literal["carried"] = "carried"
"""In the place of `donate_argnums`: every array whose place a result takes is donated, and no other."""
DonateArgnums = int | Sequence[int] | Literal["carried"]


@dataclass(frozen=True)
class Argument:
    """One argument that is traced: its position (None: passed by keyword), name, and the flat inputs it makes."""

    position: int | None
    name: str
    tree: Any
    start: int
    leaf_names: tuple[str, ...]
    avals: tuple[Any, ...]

    def is_one_of(self, marks: Collection[int | str]) -> bool:
        """Whether its position, or the name that it was passed by, is among these."""
        return (self.name if self.position is None else self.position) in marks

    @property
    def inputs(self) -> range:
        """The positions of its flat inputs."""
        return range(self.start, self.start + len(self.avals))


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call: those traced, in order, and the static ones by position."""

    traced: tuple[Argument, ...]
    static: tuple[tuple[int, Any], ...]
    specs: tuple[tuple[Any, ...], dict[str, Any]]

    @property
    def tree(self) -> Any:
        """The structure of (positional arguments without the static ones, keyword arguments)."""
        return untyped_jax.tree_util.tree_structure(self.specs)

    @property
    def avals(self) -> tuple[Any, ...]:
        """The abstract value of every flat input."""
        return tuple(aval for argument in self.traced for aval in argument.avals)

    @property
    def leaf_names(self) -> tuple[str, ...]:
        """The name of every flat input: "params['w1']"."""
        return tuple(name for argument in self.traced for name in argument.leaf_names)

    def at(self, position: int) -> Argument:
        """The traced argument at a position of the call.

        Raises:
          TraceError: if there is none.
        """
        for argument in self.traced:
            if argument.position == position:
                return argument
        raise TraceError(f"there is no traced argument at position {position}")

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """What stands at every flat input in the call with these arguments."""
        static = dict(self.static)
        dynamic = tuple(arg for i, arg in enumerate(args) if i not in static)
        return untyped_jax.tree_util.tree_leaves((dynamic, dict(sorted(kwargs.items()))))

    def call(
        self, function: Callable[..., Any], dynamic: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """`function` on the traced arguments `dynamic`, with the static ones put back in their places."""
        values = list(dynamic)
        for position, value in self.static:
            values.insert(position, value)
        return function(*values, **kwargs)


def function_name(function: Callable[..., Any]) -> str:
    """The name by which errors speak of a function or a callable object."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def positions(numbers: DonateArgnums, count: int, what: str) -> tuple[int, ...]:
    """Argument numbers in order, negative ones counted from the end, without those of arguments that are not passed.

    `CARRIED` names no arguments, but arrays that only a trace knows.

    Raises:
      TraceError: if one of them is no number.
    """
    if numbers == CARRIED:
        return ()

    given = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    for number in given:
        if not isinstance(number, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TraceError(
                f"{what} is {numbers!r}: pass the positions of arguments, whole numbers"
            )
    return tuple(sorted({number % count for number in given if -count <= number < count}))


def read_arguments(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: int | Sequence[int],
) -> Arguments:
    """The arguments of `function(*args, **kwargs)`, flattened and named.

    Leaves may be ShapeDtypeStructs, numpy or JAX arrays, and Python scalars; shardings are ignored.

    Raises:
      TraceError: if a leaf is none of these; the message names it.
    """
    static = positions(static_argnums, len(args), "static_argnums")
    names = (
        function.inputs
        if isinstance(function, FlatFunction)
        else positional_names(function, len(args))
    )
    values: list[tuple[int | None, str, Any]] = [
        (i, names[i], value) for i, value in enumerate(args) if i not in static
    ]
    values += [(None, name, kwargs[name]) for name in sorted(kwargs)]
    traced: list[Argument] = []
    specs: list[Any] = []
    for position, name, value in values:
        argument, spec = _read_argument(
            position, name, value, traced[-1].inputs.stop if traced else 0
        )
        traced.append(argument)
        specs.append(spec)

    dynamic = len(args) - len(static)
    keywords = dict(zip(sorted(kwargs), specs[dynamic:], strict=True))
    return Arguments(
        tuple(traced), tuple((i, args[i]) for i in static), (tuple(specs[:dynamic]), keywords)
    )


def named_leaves(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: int | Sequence[int],
) -> list[tuple[str, Any]]:
    """The path and the value of every leaf of the arguments that are traced, in order.

    Raises:
      TraceError: as `read_arguments`.
    """
    arguments = read_arguments(function, args, kwargs, static_argnums)
    static = {position for position, _ in arguments.static}
    dynamic = [value for i, value in enumerate(args) if i not in static]
    leaves = untyped_jax.tree_util.tree_leaves((dynamic, [kwargs[name] for name in sorted(kwargs)]))
    return list(zip(arguments.leaf_names, leaves, strict=True))


def input_signature(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: int | Sequence[int],
) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """The (path, shape, dtype) of every flat input that these arguments make; nothing is traced.

    Raises:
      TraceError: as `read_arguments`.
    """
    arguments = read_arguments(function, args, kwargs, static_argnums)
    return tuple(
        (name, data_shape(aval), str(data_dtype(aval)))
        for name, aval in zip(arguments.leaf_names, arguments.avals, strict=True)
    )


def _read_argument(position: int | None, name: str, value: Any, start: int) -> tuple[Argument, Any]:
    leaves, tree = untyped_jax.tree_util.tree_flatten_with_path(value)
    names = tuple(name + untyped_jax.tree_util.keystr(path) for path, _ in leaves)
    avals = tuple(
        _aval(leaf, leaf_name) for (_, leaf), leaf_name in zip(leaves, names, strict=True)
    )
    spec = untyped_jax.tree_util.tree_unflatten(tree, [spec_of(aval) for aval in avals])
    return Argument(position, name, tree, start, names, avals), spec


def _aval(leaf: Any, name: str) -> Any:
    if _compat.is_reference(leaf):
        raise TraceError(
            f"argument {name} is a mutable reference, which a plan cannot hold: pass its value, {name}[...], and "
            f"assign what the function returns for it"
        )

    try:
        return aval_of(leaf)
    except (TypeError, ValueError) as error:
        raise TraceError(
            f"argument {name} is a {type(leaf).__name__}, not an array or a number: pass the arrays in it, make its "
            f"class a pytree (jax.tree_util.register_dataclass), or name it in static_argnames"
        ) from error
    except OverflowError as error:
        raise TraceError(
            f"argument {name}: {error}. Pass an array of a type that holds it."
        ) from error


def positional_names(function: Callable[..., Any], count: int) -> list[str]:
    """Parameter names as JAX gives them: "x", and "args[0]" for what falls into *args or has no signature."""
    names: list[str] = []
    variadic = "args"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []

    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            variadic = parameter.name

    names += [f"{variadic}[{i}]" for i in range(count - len(names))]
    return names[:count]
