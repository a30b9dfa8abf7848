"""Derived functions: what a transformation makes of a planned call, each a flat function with a plan of its own.

gradient(x)              -> y, d y[0] / d x            y[0] a scalar; forward and backward are one plan
pushed(x, dx)            -> y, dy                      a value and its tangent
tangents(x, dx)          -> dy                         linear in dx; computes the value again
transposed(x, dy)        -> dx                         of a function that is linear in some operands
mapped(x)                -> [f(x[0]), f(x[1]), ...]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._mesh import spec_of
from autopar.api.transforms.planned import (
    PlannedFunction,
    at,
    mapped_constraints,
    merged,
    settings_for,
    spread,
)
from autopar.trace.flat import TRACING, FlatFunction

Positions = tuple[int, ...]
_TANGENT = "tangent of "


def inexact(planned: PlannedFunction) -> Positions:
    """The positions of results that have a derivative."""
    return tuple(
        n for n, aval in enumerate(planned.results) if jnp.issubdtype(aval.dtype, jnp.inexact)
    )


def tangent_aval(aval: Any) -> Any:
    """The abstract value of the tangent of a value."""
    return untyped_jax.core.ShapedArray(aval.shape, aval.dtype)


def tangent_names(names: Sequence[str]) -> tuple[str, ...]:
    """What the tangents of values are called."""
    return tuple(f"{_TANGENT}{name}" for name in names)


def gradient_names(names: Sequence[str]) -> tuple[str, ...]:
    """What the gradients with respect to values are called, those with respect to tangents too."""
    return tuple(f"gradient of {name.removeprefix(_TANGENT)}" for name in names)


def gradient(planned: PlannedFunction, moving: Positions, avals: Sequence[Any]) -> PlannedFunction:
    """The results, then the gradients of the first one with respect to the operands `moving`.

    A gradient lies as the operand that it belongs to, so its reduction is over the axes on which that is replicated.
    """
    flat = planned.flat

    def function(*operands: Any) -> list[Any]:
        def loss(*moved: Any) -> Any:
            value, *others = flat(*merged(operands, moving, moved))
            return value, others

        value, pull, others = untyped_jax.vjp(loss, *at(operands, moving), has_aux=True)
        return [value, *others, *pull(untyped_jax.numpy.ones_like(value))]

    names = gradient_names(at(flat.inputs, moving))
    carry = tuple((len(flat.outputs) + k, n) for k, n in enumerate(moving))
    derived = replace(
        flat, function=function, name=f"gradient of {flat.name}", outputs=(*flat.outputs, *names)
    )
    results = [*planned.results, *map(tangent_aval, avals)]
    return planned.derive(
        derived, results, settings_for(planned, "gradient", carry=carry), planned.effects
    )


def pushed(planned: PlannedFunction, moving: Positions) -> PlannedFunction:
    """The results, then the tangents of those that have any, for tangents of the operands `moving`."""
    flat = planned.flat
    wanted = inexact(planned)

    def function(*operands: Any) -> list[Any]:
        primals = operands[: len(flat.inputs)]
        given = operands[len(flat.inputs) :]

        def moved(*values: Any) -> Any:
            outs = flat(*merged(primals, moving, values))
            return at(outs, wanted), outs

        _, tangents, outs = untyped_jax.jvp(moved, at(primals, moving), list(given), has_aux=True)
        return [*outs, *tangents]

    outputs = (*flat.outputs, *tangent_names(at(flat.outputs, wanted)))
    derived = replace(
        _with_tangents(flat, moving), function=function, name=f"jvp of {flat.name}", outputs=outputs
    )
    results = [*planned.results, *(tangent_aval(planned.results[n]) for n in wanted)]
    return planned.derive(derived, results, settings_for(planned, "jvp"), planned.effects)


def tangents(planned: PlannedFunction, moving: Positions, wanted: Positions) -> PlannedFunction:
    """The tangents of the results `wanted`, for tangents of the operands `moving`; linear in these."""
    flat = planned.flat

    def function(*operands: Any) -> list[Any]:
        primals = operands[: len(flat.inputs)]
        given = operands[len(flat.inputs) :]

        def moved(*values: Any) -> Any:
            return at(flat(*merged(primals, moving, values)), wanted)

        # Linearized, not pushed forward: a function with a derivative of its own may know the backward direction only.
        _, linear = untyped_jax.linearize(moved, *at(primals, moving))
        return linear(*given)

    outputs = tangent_names(at(flat.outputs, wanted))
    derived = replace(
        _with_tangents(flat, moving),
        function=function,
        name=f"tangent of {flat.name}",
        outputs=outputs,
        part=True,
    )
    results = [tangent_aval(planned.results[n]) for n in wanted]
    return planned.derive(derived, results, settings_for(planned, "tangent"))


def transposed(
    planned: PlannedFunction, linear: Positions, given: Positions, avals: Sequence[Any]
) -> PlannedFunction:
    """The cotangents of the operands `linear`, for the other operands and cotangents of the results `given`.

    `avals` are the abstract values of the operands `linear`.
    """
    flat = planned.flat
    count = len(flat.inputs)
    known = tuple(n for n in range(count) if n not in linear)

    def function(*operands: Any) -> list[Any]:
        others = operands[: len(known)]
        cotangents = operands[len(known) :]

        def moved(*values: Any) -> Any:
            return at(flat(*spread(count, linear, values, others)), given)

        pull = untyped_jax.linear_transpose(moved, *map(spec_of, avals))
        return list(pull(list(cotangents)))

    derived = FlatFunction(
        function,
        f"transpose of {flat.name}",
        (*at(flat.inputs, known), *gradient_names(at(flat.outputs, given))),
        gradient_names(at(flat.inputs, linear)),
        tuple(k for k, n in enumerate(known) if n in flat.state),
        part=True,
    )
    results = list(map(tangent_aval, avals))
    return planned.derive(
        derived, results, settings_for(planned, "transpose"), late=planned.compiled.late
    )


@dataclass(frozen=True, eq=False)
class Mapped:
    """A mapped function; `dims` says where each result has the mapped dim, in front (0) or nowhere (None)."""

    planned: PlannedFunction
    dims: tuple[int | None, ...]

    @property
    def parts(self) -> tuple[PlannedFunction, ...]:
        """All that is planned."""
        return (self.planned,)


def mapped(
    planned: PlannedFunction, dims: Sequence[int | None], axis: Any, avals: Sequence[Any]
) -> Mapped:
    """The function for each slice of the operands along `dims`; `avals` are the abstract values of whole operands."""
    flat = planned.flat
    out_dims = _out_dims(planned, dims, axis, avals)
    function = _vmap(flat, dims, out_dims, axis)
    results = [
        a if dim is None else untyped_jax.core.ShapedArray((axis.size, *a.shape), a.dtype)
        for a, dim in zip(planned.results, out_dims, strict=True)
    ]
    settings = settings_for(
        planned, "vmap", constraints=mapped_constraints(planned, dims, out_dims)
    )
    effects = frozenset(
        effect for effect in planned.effects if getattr(effect, "name", None) != axis.name
    )
    derived = replace(flat, function=function, name=f"vmap of {flat.name}")

    return Mapped(planned.derive(derived, results, settings, effects), out_dims)


def _out_dims(
    planned: PlannedFunction, dims: Sequence[int | None], axis: Any, avals: Sequence[Any]
) -> tuple[int | None, ...]:
    """Which results differ from element to element, as jax.vmap sees it; found by tracing the function once more."""
    found: list[int | None] = []

    def probe(*operands: Any) -> Any:
        results = planned.flat(*operands)
        found[:] = [0 if _compat.is_mapped(result) else None for result in results]
        return results

    with TRACING(True), _compat.without_mesh():
        untyped_jax.eval_shape(_vmap(probe, dims, 0, axis), *map(spec_of, avals))
    return tuple(found)


def _vmap(function: Any, in_dims: Sequence[int | None], out_dims: Any, axis: Any) -> Any:
    return untyped_jax.vmap(
        function,
        in_axes=tuple(in_dims),
        out_axes=out_dims if isinstance(out_dims, int) else list(out_dims),
        axis_name=axis.name,
        axis_size=axis.size,
        spmd_axis_name=axis.spmd_name,
    )


def _with_tangents(flat: FlatFunction, moving: Positions) -> FlatFunction:
    """`flat` with an operand more for the tangent of each of `moving`."""
    count = len(flat.inputs)
    names = tangent_names(at(flat.inputs, moving))
    state = tuple(count + k for k, n in enumerate(moving) if n in flat.state)
    return replace(flat, inputs=(*flat.inputs, *names), state=(*flat.state, *state))
