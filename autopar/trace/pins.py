"""Pins: shardings that the user's function names itself, as parameters that a plan can be held to."""

from __future__ import annotations

from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from autopar.core.graph import OpGraph
from autopar.core.pins import PINNED, Spec
from autopar.errors import TraceError
from autopar.trace.keys import data_shape


def pinned_params(eqn: Any) -> dict[str, Any] | None:
    """What a pinned operator says of placements; None where it says nothing, as a constraint to a single device.

    A reshard to no axes says so of Explicit axes only; differentiation leaves such ones behind.

    `axes` are the user's mesh axes (name, size), `ins` and `outs` for each operand and result, for each dim the axes
    that split it, None where the dim is left open.
    """
    params = eqn.params
    if eqn.primitive.name == "shard_map":
        ins, outs = (
            tuple(_spec(spec, atom.aval) for spec, atom in zip(specs, atoms, strict=True))
            for specs, atoms in ((params["in_specs"], eqn.invars), (params["out_specs"], eqn.outvars))
        )
        return {"axes": _axes(params["mesh"]), "ins": ins, "outs": outs, "proves": bool(params["check_vma"])}
    sharding = params["sharding"] if "sharding" in params else params["dst_sharding"]
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return None
    spec = _spec(sharding.spec, eqn.invars[0].aval)
    if eqn.primitive.name == "reshard" and not any(spec):
        return None
    return {"axes": _axes(sharding.mesh), "ins": (spec,), "outs": (spec,)}


def check_one_mesh(graph: OpGraph) -> None:
    """Whether all pins are for one mesh.

    Raises:
      TraceError: if not.
    """
    meshes = {op.params["axes"]: op for op in graph.ops if op.kind in PINNED}
    if len(meshes) > 1:
        named = " and ".join(f"{dict(axes)} ({op.source})" for axes, op in meshes.items())
        raise TraceError(
            f"the function's own shardings are for different meshes: {named}. A plan has one mesh: use one."
        )


def check_by_hand_throughout(eqn: Any, source: str) -> None:
    """Whether a shard_map is over all axes of its mesh.

    Raises:
      TraceError: if not.
    """
    mesh, by_hand = eqn.params["mesh"], eqn.params["newly_manual_axes"]
    left = [f"{name}={size}" for name, size in mesh.shape.items() if name not in by_hand and size > 1]
    if left:
        raise TraceError(
            f"the shard_map at {source or 'an unknown line'} leaves mesh axes {', '.join(left)} to the compiler; plans "
            f"hold only those over all axes of their mesh. Leave out axis_names, and say in the specs what they split."
        )


def _axes(mesh: Any) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(size)) for name, size in mesh.shape.items())


def _spec(spec: Any, aval: Any) -> Spec:
    """The axes of each dim; those of a key's data are whole."""
    entries: list[tuple[str, ...] | None] = []
    for entry in spec:
        if entry is PartitionSpec.UNCONSTRAINED:
            entries.append(None)
        else:
            entries.append(() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry))
    return tuple(entries) + ((),) * (len(data_shape(aval)) - len(entries))
