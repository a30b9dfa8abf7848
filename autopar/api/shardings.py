"""Shardings as pins: `in_shardings` and `out_shardings` as jax.jit takes them, and arrays kept where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from autopar._compat import untyped_jax
from autopar.api.call import is_sharded
from autopar.api.constraints import pin
from autopar.api.options import Settings, is_sharding
from autopar.core.mesh import DeviceMesh
from autopar.core.pins import Spec
from autopar.errors import InvalidConstraint, InvalidMesh, InvalidOption
from autopar.search.constraints.records import Constraint, Follow, Layout, Named, Pin
from autopar.trace import Traced
from autopar.trace.arguments import named_leaves
from autopar.trace.returned import result_of

_UNPINNED = object()
AnyMesh = Mesh | AbstractMesh
_KEEP = "shardings='keep'"


@dataclass(frozen=True)
class Shapes:
    """The structures of a function's arguments, (positional, keyword), and results, and the names of their leaves."""

    in_tree: Any
    inputs: Sequence[str]
    out_tree: Any
    outputs: Sequence[str]

    @classmethod
    def of(cls, traced: Traced) -> Shapes:
        """Those of a traced function."""
        outputs = [traced.graph.output_name(n) for n in range(len(traced.graph.outputs))]
        return cls(
            traced.in_tree,
            [tensor.name for tensor in traced.graph.inputs],
            traced.out_tree,
            outputs,
        )


def pinned(settings: Settings, shapes: Shapes, leading: int = 0) -> Settings:
    """`settings` with its shardings as constraints on the inputs and outputs of a function.

    Args:
      settings: those of the function.
      shapes: of the function.
      leading: how many arguments stand before those that `in_shardings` is for.

    Raises:
      InvalidOption: for shardings that are no prefix of the arguments or results.
    """
    pins = [
        *_pins_of_inputs(settings.in_shardings, shapes, leading),
        *_pins_of_outputs(settings.out_shardings, shapes),
    ]
    if not pins:
        return settings
    return replace(
        settings, constraints=(*settings.constraints, *pins), in_shardings=None, out_shardings=None
    )


def _pins_of_inputs(given: Any, shapes: Shapes, leading: int) -> Iterator[Constraint]:
    dynamic, _ = untyped_jax.tree.unflatten(shapes.in_tree, range(shapes.in_tree.num_leaves))
    prefix = tuple(cast("list[Any]", given)) if isinstance(given, list) else given
    return _pins("in_shardings", prefix, dynamic[leading:], shapes.inputs)


def _pins_of_outputs(given: Any, shapes: Shapes) -> Iterator[Constraint]:
    structure = result_of(shapes.out_tree)
    positions = untyped_jax.tree.unflatten(structure, range(structure.num_leaves))
    return _pins("out_shardings", given, positions, shapes.outputs)


def _pins(what: str, prefix: Any, positions: Any, names: Sequence[str]) -> Iterator[Constraint]:
    """A pin for each leaf of `positions` over which `prefix` has a sharding."""
    if prefix is None:
        return

    marked = untyped_jax.tree.map(_marked, prefix, is_leaf=is_sharding)
    try:
        shardings = untyped_jax.tree.broadcast(marked, positions, is_leaf=is_sharding)
    except ValueError as error:
        reason = str(error).strip().splitlines()[0]
        side = "arguments" if what == "in_shardings" else "results"
        raise InvalidOption(
            f"{what} is no prefix of the {side}: {reason}. Give one sharding for all, or their structure down to where "
            f"one holds for all below"
        ) from error

    leaves: list[Any] = untyped_jax.tree.leaves(shardings, is_leaf=is_sharding)
    numbers: list[int] = untyped_jax.tree.leaves(positions)
    for sharding, position in zip(leaves, numbers, strict=True):
        if sharding is not _UNPINNED:
            yield pin(names[position], sharding)


def _marked(sharding: Any) -> Any:
    return _UNPINNED if sharding is None else sharding


# Arrays kept where they lie -------------------------------------------------------------------------------------------


def kept(
    settings: Settings, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Settings:
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
    return replace(
        settings,
        mesh=_mesh_of(settings, lying),
        constraints=(*settings.constraints, Follow(_KEEP, pins)),
    )


def _named(name: str, sharding: Any) -> NamedSharding:
    if not isinstance(sharding, NamedSharding):
        raise InvalidConstraint(
            f"{_KEEP}: argument {name} lies as {sharding}: only a NamedSharding can be kept. Put it by "
            f"jax.device_put, or pass shardings='move'."
        )
    return sharding


def _mesh_of(settings: Settings, lying: dict[str, NamedSharding]) -> Any:
    (first, sharding), *others = lying.items()
    for name, other in others:
        if not _are_one(sharding.mesh, other.mesh):
            raise InvalidMesh(
                f"{_KEEP}: argument {first} lies on {_show(sharding.mesh)}, argument {name} on {_show(other.mesh)}: a "
                f"plan has one mesh. Put them on one, or pass shardings='move'."
            )

    asked = settings.mesh
    if asked is None:
        return sharding.mesh if isinstance(sharding.mesh, Mesh) else dict(sharding.mesh.shape)

    is_same = (
        _are_one(asked, sharding.mesh)
        if isinstance(asked, Mesh)
        else _axes(asked) == _axes(sharding.mesh.shape)
    )
    if not is_same:
        shown = _show(asked) if isinstance(asked, Mesh) else DeviceMesh(_axes(asked))
        raise InvalidMesh(
            f"{_KEEP}: argument {first} lies on {_show(sharding.mesh)}, and mesh {shown} is asked for. Leave out "
            f"mesh, or pass shardings='move'."
        )

    return asked


def _are_one(a: AnyMesh, b: AnyMesh) -> bool:
    """Whether two meshes have the same axes, over the same devices where both have any."""
    if _axes(a.shape) != _axes(b.shape):
        return False
    return not (isinstance(a, Mesh) and isinstance(b, Mesh)) or list(a.devices.flat) == list(
        b.devices.flat
    )


def _axes(shape: Any) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(size)) for name, size in shape.items())


def _show(mesh: AnyMesh) -> str:
    devices = (
        f" over devices {[device.id for device in mesh.devices.flat]}"
        if isinstance(mesh, Mesh)
        else ""
    )
    return f"mesh {DeviceMesh(_axes(mesh.shape))}{devices}"


def _dims(spec: PartitionSpec) -> Spec:
    return tuple(
        () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for entry in spec
    )
