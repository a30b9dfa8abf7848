"""Types: the mesh under which a function is traced, and the shardings in the types of what it is traced with.

JAX writes the sharding of an array into its type where the axes of its mesh are Explicit; a function may ask for it,
and some operators refuse operands by it. It says nothing of how a plan lays the array.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autopar._mesh import ambient_mesh, has_explicit_axes, sharding_in_type, typed_spec_of

EXPLICIT = AxisType.Explicit.name
TypedAxes = tuple[tuple[str, int, str], ...]
"""Of each axis of a mesh its name, size and type ("Auto", "Explicit")."""


def mesh_of_types(leaves: Iterable[Any]) -> AbstractMesh | None:
    """The mesh of which types speak where arguments are these: the one that is set, else that of the arguments.

    None where there is neither, or arguments lie on several Explicit meshes.
    """
    ambient = ambient_mesh()
    if ambient is not None:
        return ambient
    found = [sharding_in_type(leaf) for leaf in leaves]
    meshes = {sharding.mesh.abstract_mesh for sharding in found if sharding is not None}
    explicit = [mesh for mesh in meshes if has_explicit_axes(mesh)]
    return explicit[0] if len(explicit) == 1 else None


def typed_axes(mesh: AbstractMesh | None) -> TypedAxes:
    """The axes of `mesh`; () where none of them is Explicit."""
    if mesh is None or not has_explicit_axes(mesh):
        return ()
    sizes = dict(mesh.shape)
    return tuple(
        (str(name), int(sizes[name]), kind.name)
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
    )


def typed(aval: Any, leaf: Any, mesh: AbstractMesh | None) -> Any:
    """What stands for an argument `leaf` of this abstract value while it is traced.

    Its sharding on `mesh` is in its type. One that lies elsewhere is moved, so that it is whole there if `mesh` is set.
    """
    sharding = None if mesh is None else sharding_in_type(leaf)
    if sharding is not None and sharding.mesh == mesh:
        return typed_spec_of(aval, sharding)
    ambient = ambient_mesh()
    return typed_spec_of(aval, None if ambient is None else NamedSharding(ambient, PartitionSpec()))


def typed_specs(eqn: Any) -> Sequence[Any]:
    """What stands for the operands of an equation while something is traced in its place."""
    return [typed_spec_of(atom.aval, sharding_in_type(atom.aval)) for atom in eqn.invars]
