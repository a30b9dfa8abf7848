"""operator: a Python function as one operator of the graph, with one rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

from autopar._compat import untyped_jax
from autopar._mesh import aval_of
from autopar._payload import Composite
from autopar.errors import RuleError, TraceError
from autopar.operators.primitive import KEEP, operator_p
from autopar.ops.rules.derived import JVP, VJP, derived
from autopar.ops.rules.factor_rule import Factor
from autopar.ops.rules.notation import Reduced
from autopar.ops.rules.registry import has_rule, register
from autopar.ops.rules.user import RuleLike, as_rule

Function = TypeVar("Function", bound=Callable[..., Any])

_OWNERS: dict[str, str] = {}
"""The function that each operator's name belongs to: defining that one again replaces the rule."""


def operator(
    rule: RuleLike,
    *,
    static: str | Collection[str] = (),
    name: str | None = None,
    reduced: Reduced = (),
    frozen: Factor | Collection[Factor] = (),
    linear: Iterable[int | Collection[int]] = (),
    **sizes: int,
) -> Callable[[Function], Function]:
    """Decorator: autopar plans the function as one operator, which `rule` says how to split.

        @autopar.operator("... d -> ... d", frozen="d")
        def unit(x):
            return x / jnp.sqrt((x * x).sum(-1, keepdims=True))

    Everywhere else (plain jax.jit, grad, vmap, eager) it is the ordinary function. A plan runs it on slices of its
    operands; its derivatives are one operator each, with rules that follow from this one. A plan is also made with
    all such functions expanded, and the better of the two is kept (`SearchOptions.operators`).

    Args:
      rule: text in the notation of `register_rule`, or a function from an `OpNode` to its `FactorRule`, such as
        `whole_along`. Operands are the arrays in the arguments, in the order of the signature, results those in what
        is returned. The function sees static arguments in `op.params`,
        and in `op.params["arguments"]` the argument that each operand is part of.
      static: names of arguments that are no arrays.
      name: the operator's name in plans; None: the function's.
      reduced: as in `register_rule`, for text only.
      frozen: as in `register_rule`, for text only.
      linear: as in `register_rule`, for text only.
      **sizes: as in `register_rule`, for text only.

    Raises:
      RuleError: if the rule is not well formed, or the name is that of a primitive or of another operator.
    """
    checked = as_rule(rule, reduced=reduced, frozen=frozen, linear=linear, **sizes)
    fixed = frozenset([static] if isinstance(static, str) else static)

    def decorate(function: Function) -> Function:
        kind = name or _name(function, "__name__")
        signature = inspect.signature(function)
        unknown = fixed - signature.parameters.keys()
        if unknown:
            raise RuleError(f"static names {sorted(unknown)}, which {kind!r} does not take")

        _claim(kind, f"{function.__module__}.{_name(function, '__qualname__')}")
        for derivative in (kind, kind + JVP, kind + VJP):
            register(derivative, derived(checked), replace=True)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not KEEP.value:
                return function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return _call(kind, function, bound, fixed)

        return cast("Function", call)

    return decorate


def _name(function: Callable[..., Any], attribute: str) -> str:
    """A function's name; for one that has none, such as a `functools.partial`, that of its type."""
    return getattr(function, attribute, type(function).__name__)


def _claim(kind: str, owner: str) -> None:
    """Makes `kind` the name of the function `owner`.

    Raises:
      RuleError: if it is that of a primitive with a rule, or of another function.
    """
    if _OWNERS.get(kind) != owner and (has_rule(kind) or kind in _OWNERS):
        what = _OWNERS.get(kind, "a primitive")
        raise RuleError(
            f"the name {kind!r} of the operator {owner} is that of {what}: give it another by name=..."
        )
    _OWNERS[kind] = owner


def _call(
    kind: str, function: Callable[..., Any], bound: inspect.BoundArguments, static: frozenset[str]
) -> Any:
    """Binds the operator; the arrays in its arguments are its operands, in the order of the signature."""
    names = [name for name in bound.arguments if name not in static]
    leaves, tree = untyped_jax.tree.flatten([bound.arguments[name] for name in names])
    parts = tuple(name for name in names for _ in untyped_jax.tree.leaves(bound.arguments[name]))
    for leaf in leaves:
        _check_leaf(kind, leaf)

    fixed = {name: bound.arguments[name] for name in bound.arguments if name in static}
    out_trees: list[Any] = []

    def flat(*operands: Any) -> list[Any]:
        arguments = dict(zip(names, untyped_jax.tree.unflatten(tree, operands), strict=True))
        given = {
            name: arguments[name] if name in arguments else fixed[name] for name in bound.arguments
        }
        again = inspect.BoundArguments(bound.signature, given)  # pyright: ignore[reportArgumentType] - an ordered dict
        results, out_tree = untyped_jax.tree.flatten(function(*again.args, **again.kwargs))
        out_trees.append(out_tree)
        return results

    results = operator_p.bind(*leaves, composite=Composite(kind, flat, parts, fixed))
    return untyped_jax.tree.unflatten(out_trees[-1], results)


def _check_leaf(kind: str, leaf: Any) -> None:
    try:
        aval_of(leaf)
    except TypeError as error:
        raise TraceError(
            f"an argument of operator {kind!r} is {leaf!r}, a {type(leaf).__name__} and no array: name it in static="
        ) from error
