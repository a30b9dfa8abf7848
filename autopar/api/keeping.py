"""Keeping: a plan for arguments where they lie, as pins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from autopar.api.call import is_sharded
from autopar.api.settings import Settings
from autopar.core.mesh import DeviceMesh
from autopar.core.pins import Spec
from autopar.errors import InvalidConstraint, InvalidMesh
from autopar.search.constraints.records import Follow, Layout, Named, Pin
from autopar.trace.arguments import named_leaves

AnyMesh = Mesh | AbstractMesh
SOURCE = "shardings='keep'"


def kept(settings: Settings, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Settings:
    """`settings` with a pin for every argument that is sharded, on the mesh of these, if sharded ones are kept.

    Raises:
      InvalidConstraint: an argument is sharded otherwise than by a NamedSharding.
      InvalidMesh: the arguments are on several meshes, or on another than was asked for.
    """
    if settings.shardings != "keep":
        return settings
    named = named_leaves(fn, args, kwargs, settings.static_argnums)
    lying = {name: _named(name, leaf.sharding) for name, leaf in named if is_sharded(leaf)}
    if not lying:
        return settings
    pins = tuple(Pin(Named(name), Layout(_dims(sharding.spec))) for name, sharding in lying.items())
    return replace(settings, mesh=_mesh_of(settings, lying), constraints=(*settings.constraints, Follow(SOURCE, pins)))


def _named(name: str, sharding: Any) -> NamedSharding:
    if not isinstance(sharding, NamedSharding):
        raise InvalidConstraint(
            f"{SOURCE}: argument {name} lies as {sharding}: only a NamedSharding can be kept. Put it by "
            f"jax.device_put, or pass shardings='move'."
        )
    return sharding


def _mesh_of(settings: Settings, lying: dict[str, NamedSharding]) -> Any:
    (first, sharding), *others = lying.items()
    for name, other in others:
        if not _are_one(sharding.mesh, other.mesh):
            raise InvalidMesh(
                f"{SOURCE}: argument {first} lies on {_show(sharding.mesh)}, argument {name} on {_show(other.mesh)}: a "
                f"plan has one mesh. Put them on one, or pass shardings='move'."
            )
    asked = settings.mesh
    if asked is None:
        return sharding.mesh if isinstance(sharding.mesh, Mesh) else dict(sharding.mesh.shape)
    is_same = _are_one(asked, sharding.mesh) if isinstance(asked, Mesh) else _axes(asked) == _axes(sharding.mesh.shape)
    if not is_same:
        shown = _show(asked) if isinstance(asked, Mesh) else DeviceMesh(_axes(asked))
        raise InvalidMesh(
            f"{SOURCE}: argument {first} lies on {_show(sharding.mesh)}, and mesh {shown} is asked for. Leave out "
            f"mesh, or pass shardings='move'."
        )
    return asked


def _are_one(a: AnyMesh, b: AnyMesh) -> bool:
    """Whether two meshes have the same axes, over the same devices where both have any."""
    if _axes(a.shape) != _axes(b.shape):
        return False
    return not (isinstance(a, Mesh) and isinstance(b, Mesh)) or list(a.devices.flat) == list(b.devices.flat)


def _axes(shape: Any) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(size)) for name, size in shape.items())


def _show(mesh: AnyMesh) -> str:
    devices = f" over devices {[device.id for device in mesh.devices.flat]}" if isinstance(mesh, Mesh) else ""
    return f"mesh {DeviceMesh(_axes(mesh.shape))}{devices}"


def _dims(spec: PartitionSpec) -> Spec:
    return tuple(() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in spec)
