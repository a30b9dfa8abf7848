"""wrap: a program as a jitted function of global arrays, with in and out shardings and donation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from autopar._compat import make_mesh, shard_map, untyped_jax
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.emit.run import local_function
from autopar.passes.program import ShardedProgram


def partition_spec(placement: Placement) -> PartitionSpec:
    """`placement` (fully reduced) as JAX's PartitionSpec."""
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in placement.dims))


def shardings(placements: Sequence[Placement], mesh: Mesh) -> tuple[NamedSharding, ...]:
    """The NamedShardings of fully reduced `placements`."""
    return tuple(NamedSharding(mesh, partition_spec(placement)) for placement in placements)


def device_mesh(mesh: DeviceMesh, devices: Sequence[Any]) -> Mesh:
    """`mesh` over `devices`, row-major: device k is the k-th of the sequence."""
    return make_mesh(mesh.sizes, mesh.names, devices)


def placements(program: ShardedProgram, values: Sequence[int]) -> tuple[Placement, ...]:
    """The placements of `values`."""
    return tuple(program.values[value].placement for value in values)


def wrap(program: ShardedProgram, mesh: Mesh, donated: Sequence[int] = ()) -> Callable[..., tuple[jax.Array, ...]]:
    """`program` as a jitted function of its flat inputs (global arrays), returning its flat outputs.

    Replication is proven by JAX (`check_vma`) wherever its check can follow the program.
    """
    ins, outs = placements(program, program.inputs), placements(program, program.outputs)
    body = shard_map(
        local_function(program),
        mesh=mesh,
        in_specs=tuple(map(partition_spec, ins)),
        out_specs=tuple(map(partition_spec, outs)),
        check_vma=program.proves_replication,
    )
    return untyped_jax.jit(
        body, in_shardings=shardings(ins, mesh), out_shardings=shardings(outs, mesh), donate_argnums=tuple(donated)
    )
