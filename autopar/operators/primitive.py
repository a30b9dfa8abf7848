"""The primitive that stands for a function treated as one operator, while autopar traces; nowhere else is it bound.

It is differentiated through the function: its tangents and its gradients are operators too, whose rules follow from
that of the operator (`ops.rules.derived`). A second derivative is expanded. Mapped, it stays one operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._mesh import spec_of
from autopar._payload import OPERATOR, Composite
from autopar.errors import TraceError
from autopar.ops.rules.derived import JVP, VJP

Array = Any
untyped_ad: Any = ad
untyped_batching: Any = batching
untyped_mlir: Any = mlir

KEEP = untyped_jax.make_user_context(False)
"""Whether operators are kept. A part of JAX's own tracing context, so that traces with and without do not mix."""


class _Operator(Primitive):
    """Inside a shard_map, where values vary over mesh axes, the function is called rather than bound."""

    def bind(self, *operands: Array, composite: Composite) -> Any:
        if any(_compat.varying_axes(operand) for operand in operands):
            return list(composite.function(*operands))
        primitive: Any = super()
        return primitive.bind(*operands, composite=composite)


operator_p: Any = _Operator(OPERATOR)
operator_p.multiple_results = True


def _run(*operands: Array, composite: Composite) -> Sequence[Array]:
    return composite.function(*operands)


def _abstract(*avals: Any, composite: Composite) -> Sequence[Any]:
    closed = untyped_jax.make_jaxpr(composite.function)(*map(spec_of, avals))
    _, consts = _compat.open_jaxpr(closed)
    if any(_compat.is_tracer(value) for value in consts):
        raise TraceError(
            f"operator {composite.kind!r} closes over a value of the function around it: pass it as an argument"
        )
    if closed.effects:
        raise TraceError(
            f"operator {composite.kind!r} has a side effect: take it out of the operator"
        )
    return closed.out_avals


operator_p.def_impl(_run)
operator_p.def_abstract_eval(_abstract)
untyped_mlir.register_lowering(operator_p, untyped_mlir.lower_fun(_run, multiple_results=True))


# Derivatives ----------------------------------------------------------------------------------------------------------


def _differentiate(
    primals: Sequence[Array], tangents: Sequence[Array], *, composite: Composite
) -> Any:
    moving = tuple(n for n, tangent in enumerate(tangents) if type(tangent) is not ad.Zero)
    results = operator_p.bind(*primals, composite=composite)
    inexact = tuple(
        n for n, result in enumerate(results) if jnp.issubdtype(result.dtype, jnp.inexact)
    )
    given = [tangents[n] for n in moving]
    if composite.kind.endswith((JVP, VJP)):
        found = _tangents(composite, moving, inexact)(*primals, *given)
    else:
        outs = tuple((tuple(result.shape), str(result.dtype)) for result in results)
        found = operator_p.bind(*primals, *given, composite=_jvp(composite, moving, inexact, outs))

    place = dict(zip(inexact, found, strict=True))
    return results, [place[n] if n in place else _zero(result) for n, result in enumerate(results)]


def _zero(value: Array) -> Any:
    aval: Any = untyped_jax.typeof(value)
    return untyped_ad.Zero(aval.to_tangent_aval())


def _transpose(cotangents: Sequence[Any], *operands: Any, composite: Composite) -> Sequence[Any]:
    """Of the operator of tangents: the operator of gradients."""
    linear = [n for n, operand in enumerate(operands) if untyped_ad.is_undefined_primal(operand)]
    given = [n for n, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    dy = [cotangents[n] for n in given]
    known = [operand for n, operand in enumerate(operands) if n not in linear]
    step = composite.derivation[-1]
    source = composite.source
    if step[0] == "jvp" and source is not None and len(known) == len(operands) - len(step[1]):
        _, moving, results, outs = step
        found = operator_p.bind(
            *known, *dy, composite=_vjp(source, moving, tuple(results[n] for n in given), outs)
        )
    else:
        found = _pulled(composite, operands, linear, given, dy)

    place = dict(zip(linear, found, strict=True))
    return [place.get(n) for n in range(len(operands))]


def _pulled(
    composite: Composite,
    operands: Sequence[Any],
    linear: list[int],
    given: list[int],
    dy: list[Any],
) -> Any:
    """The gradients of a linear function by expansion."""
    specs = [spec_of(operands[n].aval) for n in linear]
    function = _moved(
        composite, [None if n in linear else x for n, x in enumerate(operands)], linear, given
    )
    return untyped_jax.linear_transpose(function, *specs)(dy)


def _moved(
    composite: Composite, operands: Sequence[Any], moving: Sequence[int], results: Sequence[int]
) -> Callable[..., list[Array]]:
    """The function of the operands `moving` only, and of its results only `results`."""

    def function(*values: Array) -> list[Array]:
        full = list(operands)
        for n, value in zip(moving, values, strict=True):
            full[n] = value
        found = composite.function(*full)
        return [found[n] for n in results]

    return function


def _tangents(
    composite: Composite, moving: Sequence[int], results: Sequence[int]
) -> Callable[..., Sequence[Array]]:
    def function(*operands: Array) -> Sequence[Array]:
        count = len(operands) - len(moving)
        moved = _moved(composite, operands[:count], moving, results)
        _, found = untyped_jax.jvp(moved, [operands[n] for n in moving], list(operands[count:]))
        return found

    return function


def _gradients(
    composite: Composite, moving: Sequence[int], results: Sequence[int]
) -> Callable[..., Sequence[Array]]:
    def function(*operands: Array) -> Sequence[Array]:
        count = len(operands) - len(results)
        moved = _moved(composite, operands[:count], moving, results)
        _, pull = untyped_jax.vjp(moved, *(operands[n] for n in moving))
        return pull(list(operands[count:]))

    return function


def _jvp(
    composite: Composite, moving: tuple[int, ...], results: tuple[int, ...], outs: Any
) -> Composite:
    function = _tangents(composite, moving, results)
    derivation = (*composite.derivation, ("jvp", moving, results, outs))
    return replace(
        composite,
        kind=composite.kind + JVP,
        function=function,
        derivation=derivation,
        source=composite,
    )


def _vjp(
    composite: Composite, moving: tuple[int, ...], results: tuple[int, ...], outs: Any
) -> Composite:
    function = _gradients(composite, moving, results)
    derivation = (*composite.derivation, ("vjp", moving, results, outs))
    return replace(
        composite,
        kind=composite.kind + VJP,
        function=function,
        derivation=derivation,
        source=composite,
    )


untyped_ad.primitive_jvps[operator_p] = _differentiate
untyped_ad.primitive_transposes[operator_p] = _transpose


# Mapping --------------------------------------------------------------------------------------------------------------


def _batch(operands: Sequence[Array], dims: Sequence[int | None], *, composite: Composite) -> Any:
    held = tuple(isinstance(dim, int) for dim in dims)
    moved = [
        untyped_jax.numpy.moveaxis(operand, dim, 0) if isinstance(dim, int) else operand
        for operand, dim in zip(operands, dims, strict=True)
    ]
    function = untyped_jax.vmap(
        composite.function, in_axes=tuple(0 if mapped else None for mapped in held)
    )
    mapped = replace(
        composite, function=function, derivation=(*composite.derivation, ("vmap", held))
    )
    results = operator_p.bind(*moved, composite=mapped)

    return results, [0] * len(results)


untyped_batching.primitive_batchers[operator_p] = _batch
