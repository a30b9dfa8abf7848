"""Pins: shardings that the user's function names itself, as parameters that a plan can be held to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autopar._compat import calls_of_jax
from autopar.core.graph import OpGraph, OpNode
from autopar.core.pins import BY_HAND, PINNED, Spec
from autopar.errors import TraceError
from autopar.trace.keys import data_shape

Axes = tuple[tuple[str, int], ...]
_RESULT_SHARDINGS = ("out_sharding", "sharding")
"""The parameters of equations that say how the result lies on an Explicit mesh."""
_MAKERS = frozenset(
    {"broadcast", "broadcast_in_dim", "broadcast_to", "empty", "full", "ones", "zeros"}
)
"""Functions that make an array of a shape, and are told how it lies."""
_AGAIN = "rematted_computation"
"""The scope of what is computed again in a backward pass; it is as in the forward pass."""
_BACKWARD = "custom_vjp"
"""Part of the names of JAX's functions that a backward pass of the user's own is called from."""


def pinned_params(eqn: Any, written: bool) -> dict[str, Any] | None:
    """What a pinned operator says of placements; None where it says nothing, as a constraint to a single device.

    `axes` are the user's mesh axes (name, size), () where none is named and any mesh will do; `ins` and `outs` for
    each operand and result, for each dim the axes that split it, None where the dim is left open. Axes of one device
    are left out of both of these.

    Args:
      eqn: the equation of an operator that is pinned.
      written: whether the user wrote it; differentiation, too, makes reshards.
    """
    params = eqn.params
    if eqn.primitive.name == "shard_map":
        mesh = params["mesh"]
        ins, outs = (
            tuple(_spec(spec, atom.aval, mesh) for spec, atom in zip(specs, atoms, strict=True))
            for specs, atoms in (
                (params["in_specs"], eqn.invars),
                (params["out_specs"], eqn.outvars),
            )
        )
        return {"axes": _axes(mesh), "ins": ins, "outs": outs, "proves": bool(params["check_vma"])}

    if eqn.primitive.name == "reshard":
        return (
            _explicit_params(params["dst_sharding"], eqn) if written and not _retyped(eqn) else None
        )

    sharding = params["sharding"]
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size <= 1:
        return None

    spec = _spec(sharding.spec, eqn.invars[0].aval, sharding.mesh)
    any_mesh = isinstance(sharding.mesh, AbstractMesh) and not any(spec)
    return {"axes": () if any_mesh else _axes(sharding.mesh), "ins": (spec,), "outs": (spec,)}


def border_params(eqn: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the borders of a shard_map say, one for each operand and result, as `pinned_params`.

    `ins` and `outs` are placements along its own axes; on the inside these split nothing.
    """
    mesh = eqn.params["mesh"]
    sides = (("in_specs", eqn.invars), ("out_specs", eqn.outvars))
    axes = _axes(mesh)
    manual = tuple(sorted(map(str, eqn.params["newly_manual_axes"])))
    outside = [
        [_spec(spec, atom.aval, mesh) for spec, atom in zip(eqn.params[name], atoms, strict=True)]
        for name, atoms in sides
    ]
    enter, leave = (
        [
            {"axes": axes, "manual": manual, "ins": (spec,), "outs": (((),) * len(spec),)}
            for spec in side
        ]
        for side in outside
    )

    return enter, [{**params, "ins": params["outs"], "outs": params["ins"]} for params in leave]


def result_params(eqn: Any, scope: str) -> dict[str, Any] | None:
    """What the user wrote of how a result lies (`out_sharding=`), as `pinned_params`; None if nothing.

    JAX states the types of what it makes itself in the same way: those of gradients (not `is_written`), and of numbers
    that it broadcasts.
    """
    given = [eqn.params[name] for name in _RESULT_SHARDINGS if eqn.params.get(name) is not None]
    if not given or len(eqn.outvars) != 1 or not is_written(eqn, scope):
        return None
    if eqn.primitive.name == "broadcast_in_dim" and _MAKERS.isdisjoint(
        calls_of_jax(eqn.source_info)[-1:]
    ):
        return None
    return _explicit_params(given[0], eqn)


def is_written(eqn: Any, scope: str) -> bool:
    """Whether an equation is as the user wrote it, in a forward pass or a backward pass of the user's own.

    What JAX transposes says of shardings what the types of the forward pass were.
    """
    if "transpose(" not in scope or _AGAIN in scope:
        return True
    return any(_BACKWARD in call for call in calls_of_jax(eqn.source_info))


def _explicit_params(sharding: Any, eqn: Any) -> dict[str, Any] | None:
    """What a type on an Explicit mesh says; None where it names no axis, or leaves the result unreduced.

    A dim without axes is whole on the Explicit axes; if there are Auto ones, it is left open.
    """
    if (
        not isinstance(sharding, NamedSharding)
        or sharding.mesh.size <= 1
        or sharding.spec.unreduced
    ):
        return None
    spec = _spec(sharding.spec, eqn.outvars[0].aval, sharding.mesh)
    if not any(spec):
        return None
    if AxisType.Auto in sharding.mesh.axis_types:
        spec = tuple(axes or None for axes in spec)
    return {"axes": _axes(sharding.mesh), "ins": (spec,), "outs": (spec,)}


def _retyped(eqn: Any) -> bool:
    """Whether a reshard changes the types of axes alone, as those do with which `auto_axes` begins."""
    aval = eqn.invars[0].aval
    after = eqn.params["dst_sharding"]
    before = aval.sharding
    mesh = after.mesh
    if before.mesh.empty or before.mesh.axis_types == mesh.axis_types:
        return False

    auto = {
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Auto
    }
    kept = [
        tuple(axis for axis in axes or () if axis not in auto)
        for axes in _spec(before.spec, aval, mesh)
    ]
    return tuple(kept) == _spec(after.spec, aval, mesh)


def on_one_mesh(graph: OpGraph) -> OpGraph:
    """`graph`, whose pins are all for one mesh; those that name no axis are for the mesh of the others.

    Raises:
      TraceError: if they are for several.
    """
    pinned = [op for op in graph.ops if op.kind in PINNED and op.params["axes"]]
    if not pinned:
        return graph

    in_shard_maps = {op.params["axes"]: op for op in pinned if op.kind in BY_HAND}
    several = {_of_several(op.params["axes"]): op for op in pinned}
    for meshes in (several, in_shard_maps):
        if len(meshes) > 1:
            named = " and ".join(
                f"{dict(op.params['axes'])} ({op.source})" for op in meshes.values()
            )
            raise TraceError(
                f"the function's own shardings are for different meshes: {named}. A plan has one mesh: use one."
            )

    named = [*in_shard_maps] or [op.params["axes"] for op in pinned]
    axes = tuple(dict.fromkeys(axis for one in named for axis in one))

    def on_mesh(op: OpNode) -> OpNode:
        is_other = op.kind in PINNED and op.params["axes"] != axes
        return replace(op, params={**op.params, "axes": axes}) if is_other else op

    return replace(graph, ops=tuple(map(on_mesh, graph.ops)))


def _of_several(axes: Axes) -> Axes:
    """`axes` without those of one device, which make no difference to a sharding constraint."""
    return tuple(axis for axis in axes if axis[1] > 1)


def check_by_hand_throughout(eqn: Any, source: str) -> None:
    """Whether a shard_map is over all axes of its mesh.

    Raises:
      TraceError: if not.
    """
    mesh = eqn.params["mesh"]
    by_hand = eqn.params["newly_manual_axes"]
    left = [
        f"{name}={size}" for name, size in mesh.shape.items() if name not in by_hand and size > 1
    ]
    if left:
        raise TraceError(
            f"the shard_map at {source or 'an unknown line'} leaves mesh axes {', '.join(left)} to the compiler; plans "
            f"hold only those over all axes of their mesh. Leave out axis_names, and say in the specs what they split."
        )


def _axes(mesh: Any) -> Axes:
    return tuple((str(name), int(size)) for name, size in mesh.shape.items())


def _spec(spec: Any, aval: Any, mesh: Any) -> Spec:
    """The axes of each dim, but for those of one device; those of a key's data are whole."""
    entries: list[tuple[str, ...] | None] = []
    for entry in spec.partitions:
        if entry is PartitionSpec.UNCONSTRAINED:
            entries.append(None)
        else:
            axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
            entries.append(tuple(axis for axis in axes if mesh.shape[axis] > 1))
    return tuple(entries) + ((),) * (len(data_shape(aval)) - len(entries))
