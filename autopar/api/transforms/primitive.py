"""The primitive that a compiled function is under a trace of JAX, and what transformations make of it.

Its lowering is the planned program, which becomes part of the function around it. Run eagerly, as inside `jax.grad` or
`jax.vmap` of concrete arrays, it is a call of the compiled function.

In reverse mode the tangents are JAX's placeholders for what is not known yet. For a loss, a scalar first result, value
and gradients are then planned as one, and the derivative is their contraction with the tangents; other functions are
planned as a pair. Tangents that are known are planned together with the value. Those of a function that is being traced
may be followed by either direction: value and tangent are then two calls, the second one linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from autopar._compat import untyped_jax
from autopar._mesh import aval_of, names_devices, typed_as
from autopar.api.transforms import derived
from autopar.api.transforms.contract import contract
from autopar.api.transforms.derived import Mapped, Positions, inexact
from autopar.api.transforms.pair import PlannedPair, pair
from autopar.api.transforms.planned import PlannedFunction, at, spread
from autopar.trace.flat import TRACING

untyped_ad: Any = ad
untyped_batching: Any = batching
untyped_mlir: Any = mlir
untyped_pe: Any = pe

planned_p: Any = Primitive("autopar_planned")
planned_p.multiple_results = True


def call(planned: PlannedFunction, operands: Sequence[Any]) -> list[Any]:
    """The flat results of a planned call, under whatever trace there is."""
    return planned_p.bind(*operands, planned=planned, devices=_marker(planned))


def _marker(planned: PlannedFunction) -> Any:
    """A jaxpr with a sharding over the devices of the plan.

    A jit that the call is in looks for shardings in all jaxprs of its own, to know the devices that it is for.
    """
    mesh = planned.compiled.known_mesh()
    return planned.once(("devices", mesh), lambda: names_devices(planned.compiled.devices(), mesh))


def _run(*operands: Any, planned: PlannedFunction, devices: Any) -> list[Any]:
    return list(planned.flat(*operands)) if TRACING.value else planned.run(operands)


def _inline(*operands: Any, planned: PlannedFunction, devices: Any) -> list[Any]:
    return planned.inline(operands)


def _abstract(*_: Any, planned: PlannedFunction, devices: Any) -> Any:
    return list(planned.results), planned.effects


# Derivatives ----------------------------------------------------------------------------------------------------------


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], *, planned: PlannedFunction, devices: Any
) -> Any:
    moving = tuple(n for n, tangent in enumerate(tangents) if _moves(primals[n], tangent))
    if not moving:
        results = call(planned, primals)
        found = {}
    else:
        results, found = _rule(planned, moving, at(tangents, moving))(
            planned, moving, primals, at(tangents, moving)
        )
    return results, [found[n] if n in found else _zero(result) for n, result in enumerate(results)]


def _moves(primal: Any, tangent: Any) -> bool:
    return type(tangent) is not ad.Zero and bool(jnp.issubdtype(aval_of(primal).dtype, jnp.inexact))


def _rule(planned: PlannedFunction, moving: Positions, given: Sequence[Any]) -> Any:
    """How a derivative is taken; each rule gives the results and, by position, their tangents."""
    if any(isinstance(tangent, pe.JaxprTracer) for tangent in given):
        return _backward if _has_loss(planned, given) else _in_two_parts
    if any(isinstance(tangent, untyped_pe.DynamicJaxprTracer) for tangent in given):
        return _apart
    return _together


def _has_loss(planned: PlannedFunction, given: Sequence[Any]) -> bool:
    """Whether the first result is a scalar whose gradients may be scaled behind: all real, of the range of float32."""
    if planned.narrow or not planned.loss or not planned.results or planned.results[0].shape:
        return False
    values = [planned.results[0], *map(aval_of, given)]
    return all(jnp.issubdtype(aval.dtype, jnp.floating) for aval in values)


def _backward(
    planned: PlannedFunction, moving: Positions, primals: Sequence[Any], given: Sequence[Any]
) -> Any:
    avals = [aval_of(primals[n]) for n in moving]
    whole = planned.once(("gradient", moving), lambda: derived.gradient(planned, moving, avals))
    values = call(whole, primals)
    results = values[: len(planned.results)]
    gradients = values[len(planned.results) :]
    found = {0: contract(gradients, given, planned.results[0].dtype)}
    others = tuple(n for n in inexact(planned) if n)
    return results, found | _apart_of(planned, moving, primals, given, others)


def _in_two_parts(
    planned: PlannedFunction, moving: Positions, primals: Sequence[Any], given: Sequence[Any]
) -> Any:
    avals = list(map(aval_of, primals))
    parts: PlannedPair = planned.once(("pair", moving), lambda: pair(planned, moving, avals))
    values = call(parts.forward, primals)
    results = values[: len(planned.results)]
    extras = values[len(planned.results) :]
    place = {"operand": primals, "result": results, "extra": extras}
    passed = [place[residual.kind][residual.number] for residual in parts.passed]
    return results, dict(zip(inexact(planned), call(parts.linear, [*passed, *given]), strict=True))


def _together(
    planned: PlannedFunction, moving: Positions, primals: Sequence[Any], given: Sequence[Any]
) -> Any:
    whole = planned.once(("jvp", moving), lambda: derived.pushed(planned, moving))
    values = call(whole, [*primals, *given])
    results = values[: len(planned.results)]
    found = values[len(planned.results) :]
    return results, dict(zip(inexact(planned), found, strict=True))


def _apart(
    planned: PlannedFunction, moving: Positions, primals: Sequence[Any], given: Sequence[Any]
) -> Any:
    return call(planned, primals), _apart_of(planned, moving, primals, given, inexact(planned))


def _apart_of(
    planned: PlannedFunction,
    moving: Positions,
    primals: Sequence[Any],
    given: Sequence[Any],
    wanted: Positions,
) -> dict[int, Any]:
    """The tangents of the results `wanted`, by position, in a call of their own."""
    if not wanted:
        return {}
    linear = planned.once(
        ("tangents", moving, wanted), lambda: derived.tangents(planned, moving, wanted)
    )
    return dict(zip(wanted, call(linear, [*primals, *given]), strict=True))


def _zero(value: Any) -> Any:
    aval: Any = untyped_jax.typeof(value)
    return untyped_ad.Zero(aval.to_tangent_aval())


def _transpose(
    cotangents: Sequence[Any], *operands: Any, planned: PlannedFunction, devices: Any
) -> list[Any]:
    linear = tuple(
        n for n, operand in enumerate(operands) if untyped_ad.is_undefined_primal(operand)
    )
    given = tuple(n for n, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero)
    avals = [operands[n].aval for n in linear]
    known = [operand for n, operand in enumerate(operands) if n not in linear]
    pulled = planned.once(
        ("transpose", linear, given), lambda: derived.transposed(planned, linear, given, avals)
    )
    found = list(map(typed_as, call(pulled, [*known, *at(cotangents, given)]), avals))
    return spread(len(operands), linear, found, [None] * len(known))


# Mapping --------------------------------------------------------------------------------------------------------------


def _batch(
    axis: Any,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    planned: PlannedFunction,
    devices: Any,
) -> Any:
    if all(dim is None for dim in dims) and not planned.effects:
        return call(planned, operands), [None] * len(planned.results)
    key = "vmap", tuple(dims), axis.name, axis.size, axis.spmd_name
    avals = list(map(aval_of, operands))
    made: Mapped = planned.once(key, lambda: derived.mapped(planned, dims, axis, avals))
    return call(made.planned, operands), made.dims


planned_p.def_impl(_run)
planned_p.def_effectful_abstract_eval(_abstract)
untyped_mlir.register_lowering(planned_p, untyped_mlir.lower_fun(_inline, multiple_results=True))
untyped_ad.primitive_jvps[planned_p] = _differentiate
untyped_ad.primitive_transposes[planned_p] = _transpose
untyped_batching.fancy_primitive_batchers[planned_p] = _batch
