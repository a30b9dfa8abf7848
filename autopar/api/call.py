"""Calls: a user's arguments as the flat arrays that a program takes, and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.sharding import NamedSharding

from autopar._compat import untyped_jax
from autopar._mesh import ambient, aval_of, is_on_host
from autopar.errors import SignatureMismatch
from autopar.trace import Traced
from autopar.trace.arguments import positions

_flatten = untyped_jax.tree_util.tree_flatten
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function: `positional` and `named` in order; None where it takes any number, or any name."""

    positional: tuple[str, ...]
    takes_more: bool
    named: frozenset[str] | None

    @classmethod
    def of(cls, fn: Callable[..., Any]) -> Parameters | None:
        """Those of `fn`; None where Python does not know them."""
        try:
            parameters = list(inspect.signature(fn).parameters.values())
        except (TypeError, ValueError):
            return None
        kinds = {parameter.kind for parameter in parameters}
        named = frozenset(parameter.name for parameter in parameters if parameter.kind in _NAMED)
        return cls(
            tuple(parameter.name for parameter in parameters if parameter.kind in _POSITIONAL),
            inspect.Parameter.VAR_POSITIONAL in kinds,
            None if inspect.Parameter.VAR_KEYWORD in kinds else named,
        )

    def takes(self, name: str) -> bool:
        """Whether an argument may be passed by this name."""
        return self.named is None or name in self.named


class Kind(NamedTuple):
    """What calls are told apart by before their arguments' types are looked at."""

    tree: Any
    static: tuple[tuple[int, type, Any], ...]
    mesh: object


class Signature(NamedTuple):
    """What a plan depends on; how arguments lie only where they are kept so, though shardings be in their types."""

    kind: Kind
    types: tuple[object, ...]
    lying: tuple[object, ...]

    def differs_by_mesh(self, other: Signature) -> bool:
        """Whether the two differ by the mesh that is set, if at all."""
        return (self.kind[:-1], *self[1:]) == (other.kind[:-1], *other[1:])


class ReadCall(NamedTuple):
    """The arguments of a call: the flat arrays and numbers, and their kind.

    `kind` is their structure, the values of static arguments, with their positions and types (True is not 1), and the
    mesh that is set.
    """

    kind: Kind
    leaves: list[Any]


def read_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], static_argnums: int | Sequence[int]
) -> ReadCall:
    """The call of a function with these arguments.

    Raises:
      SignatureMismatch: if a static argument is not hashable.
      TraceError: if `static_argnums` are no positions of arguments.
    """
    if static_argnums == ():
        leaves, tree = _flatten((args, kwargs))
        return ReadCall(Kind(tree, (), ambient()), leaves)
    static = positions(static_argnums, len(args), "static_argnums")
    dynamic = tuple(arg for i, arg in enumerate(args) if i not in static)
    leaves, tree = untyped_jax.tree_util.tree_flatten((dynamic, kwargs))
    fixed = tuple((i, kind_of(args[i]), args[i]) for i in static)
    for i, _, value in fixed:
        check_hashable(value, str(i), "static_argnums")
    return ReadCall(Kind(tree, fixed, ambient()), leaves)


def check_hashable(value: object, name: str, where: str) -> None:
    """Whether a static argument is hashable.

    Raises:
      SignatureMismatch: if not.
    """
    try:
        hash(value)
    except TypeError as error:
        raise SignatureMismatch(
            f"static argument {name} is a {type(value).__name__}, which is not hashable: pass a hashable value, such "
            f"as a tuple for a list, or leave {name} out of {where}"
        ) from error


def call_signature(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: int | Sequence[int],
    keeps: bool,
) -> Signature:
    """The signature of a call with these arguments, of a function that `keeps` arrays where they lie, or does not.

    Raises: as `read_call`.
    """
    call = read_call(args, kwargs, static_argnums)
    lying = tuple(leaf.sharding if keeps and is_sharded(leaf) else None for leaf in call.leaves)
    return Signature(call.kind, tuple(map(leaf_type, call.leaves)), lying)


def is_sharded(leaf: Any) -> bool:
    """Whether a leaf, an array or the shape of one, lies on several devices, or is said to."""
    sharding: Any = getattr(leaf, "sharding", None)
    if isinstance(sharding, NamedSharding):
        return sharding.mesh.size > 1
    return sharding is not None and sharding.num_devices > 1


def is_call_of(traced: Traced, signature: Signature) -> bool:
    """Whether what was traced takes a call of this signature; where there are static arguments, that is not known."""
    kind, types, _ = signature
    return (
        not kind.static
        and kind.tree == traced.in_tree
        and types == tuple(map(type_of, traced.input_avals))
    )


def put_back(call: ReadCall, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with other leaves."""
    structure, fixed, _ = call.kind
    dynamic, kwargs = untyped_jax.tree_util.tree_unflatten(structure, leaves)
    args = list(dynamic)
    for position, _, value in fixed:
        args.insert(position, value)
    return tuple(args), kwargs


def kind_of(value: object) -> type:
    """The type of a static value, by which 1, 1.0 and True differ."""
    return type(value)


def leaf_type(leaf: Any) -> tuple[tuple[int, ...], str, bool] | str:
    """A leaf's shape, dtype and weakness; its type's name if it is no array: the trace refuses it, and names it."""
    try:
        aval = aval_of(leaf)
    except (TypeError, ValueError, OverflowError):
        return type(leaf).__qualname__
    return type_of(aval)


def type_of(aval: Any) -> tuple[tuple[int, ...], str, bool]:
    """What of an abstract value a plan depends on."""
    memory = "<host>" if is_on_host(aval) else ""
    return aval.shape, f"{aval.dtype}{memory}", bool(getattr(aval, "weak_type", False))


def show_type(kind: Any) -> str:
    """What `leaf_type` gave, as text."""
    if isinstance(kind, str):
        return kind
    shape, dtype, _ = kind
    return f"{dtype}{list(shape)}"
