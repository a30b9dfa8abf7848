"""Entry: a call of a compiled function under a trace of JAX becomes a planned call on flat arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._mesh import spec_of
from autopar.api.bound import leading_arguments
from autopar.api.options import Settings
from autopar.api.shardings import Shapes, pinned
from autopar.api.transforms.planned import (
    ArgsKwargs,
    CompiledFunction,
    PlannedFunction,
    as_they_are,
    settings_for,
)
from autopar.api.transforms.primitive import call
from autopar.trace.arguments import Arguments, positions, read_arguments
from autopar.trace.capture import known_state, make_jaxpr
from autopar.trace.carry import Results, find_carry
from autopar.trace.flat import FlatFunction
from autopar.trace.state import Pairs
from autopar.trace.types import mesh_of_types

_FULL_RANGE: int = untyped_jax.numpy.finfo("float32").maxexp


@dataclass(frozen=True, eq=False)
class PlannedCall:
    """A compiled function for one signature; called like it, it binds the primitive.

    `captured` are values of the trace around it that the function closes over.
    """

    planned: PlannedFunction
    out_tree: Any
    static: tuple[int, ...]
    captured: tuple[Any, ...]

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results, in the function's own structure."""
        dynamic = tuple(arg for i, arg in enumerate(args) if i not in self.static)
        leaves = untyped_jax.tree.leaves((dynamic, dict(sorted(kwargs.items()))))
        return untyped_jax.tree.unflatten(
            self.out_tree, call(self.planned, [*leaves, *self.captured])
        )

    @property
    def shapes(self) -> Any:
        """The shapes and types of the results, in the function's own structure."""
        return untyped_jax.tree.unflatten(self.out_tree, list(map(spec_of, self.planned.results)))

    @property
    def plans(self) -> tuple[Any, ...]:
        """The plans of all that transformations made of it so far."""
        return _plans_of(self.planned)


def planned_call(
    fn: Callable[..., Any],
    compiled: CompiledFunction,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> PlannedCall:
    """The planned call of `fn`, compiled as `compiled`, for arguments like these. Traces `fn` once.

    Raises:
      TraceError: as `trace`.
    """
    arguments = read_arguments(fn, args, kwargs, compiled.settings.static_argnums)
    leaves = arguments.leaves(args, kwargs)
    closed, results = make_jaxpr(fn, arguments, leaves, mesh_of_types(leaves))
    _, consts = _compat.open_jaxpr(closed)
    captured = tuple(value for value in consts if _compat.is_tracer(value))
    flat = FlatFunction(
        _on_leaves(fn, arguments),
        getattr(fn, "__name__", type(fn).__name__),
        arguments.leaf_names,
        tuple(f"output{path or '[0]'}" for path in results.names),
        tuple(
            sorted(known_state(arguments, results, _carry(compiled.settings, arguments, results)))
        ),
    )
    narrow = _compat.computes_with(closed, _is_narrow)
    leading = leading_arguments(fn)
    shapes = Shapes(arguments.tree, arguments.leaf_names, results.tree, flat.outputs)
    settings = pinned(compiled.settings, shapes, leading)
    effects = frozenset(closed.effects)
    planned = PlannedFunction(
        flat, results.avals, effects, narrow, settings, compiled, _call_of(arguments), loss=True
    )
    if captured:
        planned = _with_captured(planned, closed, captured)

    return PlannedCall(
        planned, results.tree, tuple(position for position, _ in arguments.static), captured
    )


def _carry(settings: Settings, arguments: Arguments, results: Results) -> Pairs:
    count = sum(argument.position is not None for argument in arguments.traced) + len(
        arguments.static
    )
    donated = (
        *positions(settings.donate_argnums, count, "donate_argnums"),
        *settings.donate_argnames,
    )
    return find_carry(settings.carry, arguments, results, donated)


def _on_leaves(fn: Callable[..., Any], arguments: Arguments) -> Callable[..., Sequence[Any]]:
    unflatten = _call_of(arguments)

    def function(*leaves: Any) -> Sequence[Any]:
        args, kwargs = unflatten(leaves)
        return untyped_jax.tree.leaves(fn(*args, **kwargs))

    return function


def _call_of(arguments: Arguments) -> Callable[[Sequence[Any]], ArgsKwargs]:
    """What makes the arguments of the call of its flat inputs."""
    tree = arguments.tree

    def unflatten(leaves: Sequence[Any]) -> ArgsKwargs:
        dynamic, kwargs = untyped_jax.tree.unflatten(tree, leaves)
        values = list(dynamic)
        for position, value in arguments.static:
            values.insert(position, value)
        return tuple(values), kwargs

    return unflatten


def _with_captured(
    planned: PlannedFunction, closed: Any, captured: Sequence[Any]
) -> PlannedFunction:
    """`planned` with the captured values as operands, behind the others."""
    jaxpr, consts = _compat.open_jaxpr(closed)
    count = len(planned.flat.inputs)

    def function(*operands: Any) -> Sequence[Any]:
        rest = iter(operands[count:])
        known = [next(rest) if _compat.is_tracer(value) else value for value in consts]
        return untyped_jax.core.eval_jaxpr(jaxpr, known, *operands[:count])

    flat = planned.flat
    names = tuple(f"captured[{n}]" for n in range(len(captured)))
    state = (*flat.state, *range(count, count + len(captured)))
    derived = FlatFunction(function, flat.name, (*flat.inputs, *names), flat.outputs, state)
    settings = settings_for(planned, "captured")
    compiled = planned.compiled.derive(derived, settings, None)
    return replace(
        planned,
        flat=derived,
        settings=settings,
        compiled=compiled,
        unflatten=as_they_are,
        derived={},
    )


def _is_narrow(aval: Any) -> bool:
    """Whether a type is of floats with fewer bits of exponent than float32."""
    dtype = getattr(aval, "dtype", None)
    if dtype is None or _compat.is_key_dtype(dtype) or not jnp.issubdtype(dtype, jnp.floating):
        return False
    return untyped_jax.numpy.finfo(dtype).maxexp < _FULL_RANGE


def _plans_of(planned: PlannedFunction) -> tuple[Any, ...]:
    found: list[Any] = []
    for made in planned.derived.values():
        for one in [made] if isinstance(made, PlannedFunction) else getattr(made, "parts", ()):
            found += one.compiled.made
            found += _plans_of(one)
    return tuple(found)
