"""Shardings: `in_shardings` and `out_shardings` as jax.jit takes them, which are pins of inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from autopar._compat import untyped_jax
from autopar.api.constraints import pin
from autopar.api.settings import Settings
from autopar.errors import InvalidOption
from autopar.search.constraints.records import Constraint
from autopar.trace import Traced
from autopar.trace.returned import result_of

_ORDINARY_MEMORY = None, "device", "unpinned_host"
_UNPINNED = object()


def with_mesh_of_shardings(settings: Settings) -> Settings:
    """`settings` on the mesh that its NamedShardings name, where no other is asked for.

    Raises:
      InvalidOption: for what is no sharding of several devices, or shardings on several meshes.
    """
    meshes: list[Any] = []
    for name in ("in_shardings", "out_shardings"):
        for leaf in untyped_jax.tree.leaves(getattr(settings, name), is_leaf=_is_sharding):
            _check(name, leaf)
            if isinstance(leaf, NamedSharding) and leaf.mesh not in meshes:
                meshes.append(leaf.mesh)
    if len(meshes) > 1:
        raise InvalidOption(f"in_shardings and out_shardings are on several meshes, {meshes}: a plan has one")
    if not meshes:
        return settings
    mesh = meshes[0]
    if settings.mesh is not None:
        asked = settings.mesh.shape if isinstance(settings.mesh, Mesh) else settings.mesh
        if dict(asked) != dict(mesh.shape):
            raise InvalidOption(
                f"in_shardings and out_shardings are on mesh {dict(mesh.shape)}, and mesh {dict(asked)} is asked for: "
                f"leave out mesh, or pass PartitionSpecs of its axes"
            )
        return settings
    return replace(settings, mesh=mesh if isinstance(mesh, Mesh) else dict(mesh.shape))


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
        return cls(traced.in_tree, [tensor.name for tensor in traced.graph.inputs], traced.out_tree, outputs)


def pinned(settings: Settings, shapes: Shapes, leading: int = 0) -> Settings:
    """`settings` with its shardings as constraints on the inputs and outputs of a function.

    Args:
      settings: those of the function.
      shapes: of the function.
      leading: how many arguments stand before those that `in_shardings` is for.

    Raises:
      InvalidOption: for shardings that are no prefix of the arguments or results.
    """
    pins = [*_pins_of_inputs(settings.in_shardings, shapes, leading), *_pins_of_outputs(settings.out_shardings, shapes)]
    if not pins:
        return settings
    return replace(settings, constraints=(*settings.constraints, *pins), in_shardings=None, out_shardings=None)


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
    marked = untyped_jax.tree.map(_marked, prefix, is_leaf=_is_sharding)
    try:
        shardings = untyped_jax.tree.broadcast(marked, positions, is_leaf=_is_sharding)
    except ValueError as error:
        reason = str(error).strip().splitlines()[0]
        side = "arguments" if what == "in_shardings" else "results"
        raise InvalidOption(
            f"{what} is no prefix of the {side}: {reason}. Give one sharding for all, or their structure down to where "
            f"one holds for all below"
        ) from error
    leaves: list[Any] = untyped_jax.tree.leaves(shardings, is_leaf=_is_sharding)
    numbers: list[int] = untyped_jax.tree.leaves(positions)
    for sharding, position in zip(leaves, numbers, strict=True):
        if sharding is not _UNPINNED:
            yield pin(names[position], sharding)


def _marked(sharding: Any) -> Any:
    return _UNPINNED if sharding is None else sharding


def _is_sharding(value: Any) -> bool:
    return value is None or isinstance(value, Sharding | PartitionSpec)


def _check(what: str, leaf: Any) -> None:
    if leaf is None or isinstance(leaf, PartitionSpec):
        return
    if not isinstance(leaf, NamedSharding):
        raise InvalidOption(
            f"{what} holds {leaf!r}: pass a jax.sharding.NamedSharding, a PartitionSpec, or None for what is searched"
        )
    if leaf.memory_kind not in _ORDINARY_MEMORY:
        raise InvalidOption(
            f"{what} holds {leaf!r}: a plan places arrays in the memory of devices, not {leaf.memory_kind}"
        )
