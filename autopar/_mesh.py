"""Meshes of JAX: the one that the user has set, those of which types speak, and parameters that speak of none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import jax
import numpy as np
from jax.extend import core as jex
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from autopar._compat import (
    bind_params,
    is_jaxpr,
    is_key_dtype,
    is_literal,
    is_tracing,
    untyped_jax,
    without_mesh,
)


def has_explicit_axes(mesh: AbstractMesh) -> bool:
    """Whether types say how arrays lie along some axis of `mesh`."""
    return AxisType.Explicit in mesh.axis_types


def ambient_mesh() -> AbstractMesh | None:
    """The mesh that the user has set by `jax.set_mesh`; None if there is none."""
    mesh: AbstractMesh = untyped_jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def ambient() -> Mesh | AbstractMesh | None:
    """As `ambient_mesh`, with its devices where these can be told, which is outside of traces."""
    mesh = ambient_mesh()
    return mesh if mesh is None or is_tracing() else untyped_jax.sharding.get_mesh()


def ambient_devices() -> tuple[Any, ...]:
    """The devices of the mesh that the user has set by `jax.set_mesh`; () if there is none, or in a trace."""
    mesh = ambient()
    return tuple(mesh.devices.flat) if isinstance(mesh, Mesh) else ()


def aval_of(value: Any) -> Any:
    """The abstract value of an array, a Python scalar or a ShapeDtypeStruct; of its sharding only the memory is kept.

    Raises:
      TypeError: if `value` is none of these.
    """
    if isinstance(value, jax.ShapeDtypeStruct):
        aval: Any = value
    else:
        aval = jax.typeof(value)
    dtype = aval.dtype if is_key_dtype(aval.dtype) else jax.dtypes.canonicalize_dtype(aval.dtype)
    shape = tuple(aval.shape)
    weak = bool(aval.weak_type)
    space = {"memory_space": untyped_jax.memory.Space.Host} if is_on_host(aval) else {}
    return untyped_jax.core.ShapedArray(shape, dtype, weak_type=weak, **space)


HOST = "pinned_host"
"""The memory of the host that devices reach by themselves."""


def is_on_host(aval: Any) -> bool:
    """Whether an abstract array, or what a ShapeDtypeStruct stands for, lies in the memory of the host."""
    if isinstance(aval, jax.ShapeDtypeStruct):
        return getattr(aval.sharding, "memory_kind", None) == HOST
    return getattr(aval, "memory_space", None) == untyped_jax.memory.Space.Host


def spec_of(aval: Any) -> jax.ShapeDtypeStruct:
    """The ShapeDtypeStruct with this abstract value, weak type included; of a sharding only the memory is kept."""
    sharding: Any = None
    if is_on_host(aval):
        sharding = jax.sharding.SingleDeviceSharding(
            untyped_jax.local_devices()[0], memory_kind=HOST
        )
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)


def with_weakness(value: Any, weak: bool) -> Any:
    """`value`, or what stands for it with a type that is weak, or is not."""
    aval = aval_of(value)
    return value if aval.weak_type == weak else spec_of(aval.update(weak_type=weak))


def sharding_in_type(value: Any) -> NamedSharding | None:
    """The sharding in the type of an array, abstract value or ShapeDtypeStruct; None where that speaks of no mesh.

    Only Explicit axes stand in types.
    """
    sharding: Any = getattr(value, "sharding", None)
    if isinstance(value, jax.Array):
        sharding = untyped_jax.typeof(value).sharding
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return None
    return NamedSharding(sharding.mesh.abstract_mesh, _explicit_part(sharding))


def _explicit_part(sharding: NamedSharding) -> PartitionSpec:
    mesh: Any = sharding.mesh
    spec: Any = sharding.spec
    hidden = {
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind != AxisType.Explicit
    }
    if not hidden:
        return spec

    named = [
        () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes) for axes in spec
    ]
    return PartitionSpec(
        *(tuple(axis for axis in axes if axis not in hidden) or None for axes in named)
    )


def typed_as(value: Any, aval: Any) -> Any:
    """`value` with the sharding that stands in the type of `aval` in its own; as it is where that speaks of no mesh."""
    wanted = sharding_in_type(aval)
    if wanted is None or sharding_in_type(value) == wanted:
        return value
    return untyped_jax.sharding.reshard(value, wanted)


def typed_by(value: Any, spec: PartitionSpec) -> Any:
    """`value` with `spec` in its type, where all axes are Explicit: JAX then goes by it, whatever `in_specs` say."""
    typed = sharding_in_type(value)
    if typed is None or any(kind != AxisType.Explicit for kind in typed.mesh.axis_types):
        return value
    wanted = NamedSharding(typed.mesh, spec)
    return value if typed == wanted else untyped_jax.sharding.reshard(value, wanted)


def typed_spec_of(aval: Any, sharding: NamedSharding | None) -> jax.ShapeDtypeStruct:
    """As `spec_of`, with `sharding` in its type, if there is one."""
    if sharding is None:
        return spec_of(aval)
    if is_on_host(aval):
        sharding = sharding.with_memory_kind(HOST)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type)


def without_shardings(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an equation, none of which is a sharding."""
    return {name: None if isinstance(value, Sharding) else value for name, value in params.items()}


def off_mesh(params: dict[str, Any]) -> dict[str, Any]:
    """As `without_shardings`; what combines two elements, as those of a scatter, is off the mesh of its context too."""
    plain = without_shardings(params)
    return {
        name: _traced_off_mesh(value) if _is_of_scalars(value) else value
        for name, value in plain.items()
    }


def _is_of_scalars(value: Any) -> bool:
    inner = getattr(value, "jaxpr", value) if is_jaxpr(value) else None
    if inner is None or inner.constvars:
        return False
    avals = [var.aval for var in inner.invars]
    return all(isinstance(aval, untyped_jax.core.ShapedArray) and not aval.shape for aval in avals)


def _traced_off_mesh(jaxpr: Any) -> Any:
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    with without_mesh():
        closed = untyped_jax.make_jaxpr(partial(_evaluated, inner))(
            *(spec_of(var.aval) for var in inner.invars)
        )
    return closed if isinstance(jaxpr, jex.ClosedJaxpr) else closed.jaxpr


def kernel_off_mesh(jaxpr: Any) -> Any:
    """The jaxpr of a kernel, and those within it, as traced in the context of no mesh."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    eqns: list[Any] = []
    for eqn in inner.eqns:
        with eqn.ctx.manager, without_mesh():
            context = type(eqn.ctx)()
        params = {name: _off_mesh_within(value) for name, value in eqn.params.items()}
        eqns.append(eqn.replace(ctx=context, params=params))

    plain = inner.replace(eqns=eqns)
    return plain if inner is jaxpr else jaxpr.replace(jaxpr=plain)


def _off_mesh_within(value: Any) -> Any:
    if type(value) is not tuple:
        return kernel_off_mesh(value) if is_jaxpr(value) else value
    members = cast("tuple[Any, ...]", value)
    return tuple(map(_off_mesh_within, members))


def _evaluated(jaxpr: Any, *operands: Any) -> list[Any]:
    """The results of an open jaxpr, outside of the contexts in which its equations were traced."""
    values = dict(zip(jaxpr.invars, operands, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if is_literal(atom) else values[atom]

    for eqn in jaxpr.eqns:
        results = eqn.primitive.bind(
            *map(read, eqn.invars), **bind_params(eqn.primitive, off_mesh(eqn.params))
        )
        values.update(
            zip(eqn.outvars, results if eqn.primitive.multiple_results else [results], strict=True)
        )

    return [read(atom) for atom in jaxpr.outvars]


class _OverDevices(NamedSharding):
    """A sharding over devices whose mesh is not known yet.

    JAX names the shardings of a jit's results by the mesh of the first NamedSharding in it, which fails where that does
    not fit; a class of its own is left out.
    """


def names_devices(devices: Sequence[Any], mesh: Mesh | None) -> Any:
    """A closed jaxpr with a sharding over `devices`, on `mesh` if that is known, for the parameters of an equation.

    A jit looks for such in all jaxprs that are in its own, to know the devices that it is for.
    """
    if mesh is None:
        line = Mesh(np.array(list(devices), dtype=object), ("device",))
        whole: NamedSharding = _OverDevices(line, PartitionSpec())
    else:
        whole = NamedSharding(mesh, PartitionSpec())

    def placed(value: Any) -> Any:
        return untyped_jax.lax.with_sharding_constraint(value, whole)

    with without_mesh():
        return untyped_jax.make_jaxpr(placed)(jax.ShapeDtypeStruct((), np.float32))
