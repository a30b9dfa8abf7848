"""wrap: a program as a jitted function of global arrays, with in and out shardings and donation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from autopar._compat import FLOAT0, make_mesh, shard_map, untyped_jax, weakly_typed
from autopar._mesh import HOST, typed_by
from autopar.backends.known import backend_on
from autopar.core.graph import TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import ShardedProgram
from autopar.emit.run import local_function


def partition_spec(placement: Placement) -> PartitionSpec:
    """`placement` (fully reduced) as JAX's PartitionSpec."""
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in placement.dims))


def shardings(
    placements: Sequence[Placement], mesh: Mesh, tensors: Sequence[TensorInfo]
) -> tuple[NamedSharding, ...]:
    """The NamedShardings of `tensors` in fully reduced `placements`, in the memory that they lie in."""
    return tuple(
        NamedSharding(
            mesh, partition_spec(placement), **({"memory_kind": HOST} if tensor.on_host else {})
        )
        for placement, tensor in zip(placements, tensors, strict=True)
    )


def tensors(program: ShardedProgram, values: Sequence[int]) -> tuple[TensorInfo, ...]:
    """The tensors of `values`."""
    return tuple(program.values[value].tensor for value in values)


def device_mesh(mesh: DeviceMesh, devices: Sequence[Any], explicit: Collection[str] = ()) -> Mesh:
    """`mesh` over `devices`, row-major: device k is the k-th of the sequence; types tell of the `explicit` axes."""
    whole = mesh.whole
    return make_mesh(whole.sizes, whole.names, devices, explicit)


def placements(program: ShardedProgram, values: Sequence[int]) -> tuple[Placement, ...]:
    """The placements of `values`."""
    return tuple(program.values[value].placement for value in values)


@dataclass(frozen=True)
class Keys:
    """The typed PRNG keys among flat inputs and outputs: their positions and implementations."""

    inputs: Mapping[int, str] = field(default_factory=dict[int, str])
    outputs: Mapping[int, str] = field(default_factory=dict[int, str])


def of_keys(placements: Sequence[Placement], keys: Collection[int]) -> tuple[Placement, ...]:
    """`placements` of data as the user sees them: typed keys, at positions `keys`, lack the dim of their data."""
    return tuple(Placement(p.dims[:-1]) if n in keys else p for n, p in enumerate(placements))


NO_KEYS = Keys()


def wrap(
    program: ShardedProgram,
    mesh: Mesh,
    donated: Sequence[int] = (),
    weak: Collection[int] = (),
    keys: Keys = NO_KEYS,
) -> Callable[..., tuple[jax.Array, ...]]:
    """`program` as a jitted function of its flat inputs (global arrays), returning its flat outputs.

    Replication is proven by JAX (`check_vma`) wherever its check can follow the program. The outputs at positions
    `weak` have a weak type. `keys` come in and go out as typed keys, whose data the program has. Results are on
    `mesh`, typed if it has Explicit axes; inside, all axes are Auto.
    """
    ins = placements(program, program.inputs)
    outs = placements(program, program.outputs)
    backend = backend_on(mesh.devices.flat[0].platform)
    grid = device_mesh(program.mesh, tuple(mesh.devices.flat))
    run = global_function(program, grid, local_function(program, backend), weak, keys)

    return untyped_jax.jit(
        run,
        in_shardings=shardings(of_keys(ins, keys.inputs), mesh, tensors(program, program.inputs)),
        out_shardings=shardings(
            of_keys(outs, keys.outputs), mesh, tensors(program, program.outputs)
        ),
        donate_argnums=tuple(donated),
    )


def global_function(
    program: ShardedProgram,
    grid: Mesh | AbstractMesh,
    local: Callable[..., tuple[jax.Array, ...]],
    weak: Collection[int] = (),
    keys: Keys = NO_KEYS,
) -> Callable[..., tuple[jax.Array, ...]]:
    """The function of flat global arrays that runs `local` on every device of `grid`, all of whose axes are Auto.

    `weak` and `keys` as in `wrap`.
    """
    ins = placements(program, program.inputs)
    full = full_inputs(program)
    body = shard_map(
        _without_empty(program, full, local),
        mesh=grid,
        in_specs=tuple(partition_spec(ins[n]) for n in full),
        out_specs=tuple(map(partition_spec, placements(program, program.outputs))),
        check_vma=program.proves_replication,
    )

    def data(position: int, given: Any) -> Any:
        return untyped_jax.random.key_data(given) if position in keys.inputs else given

    made_of = tensors(program, program.outputs)

    def result(position: int, made: Any) -> Any:
        if made_of[position].dtype == FLOAT0:
            return np.zeros(made_of[position].shape, untyped_jax.dtypes.float0)
        if position in keys.outputs:
            return untyped_jax.random.wrap_key_data(made, impl=keys.outputs[position])
        return weakly_typed(made) if position in weak else made

    def run(*inputs: jax.Array) -> tuple[jax.Array, ...]:
        outs = body(*(typed_by(data(n, inputs[n]), partition_spec(ins[n])) for n in full))
        return tuple(result(n, out) for n, out in enumerate(outs))

    return run


def full_inputs(program: ShardedProgram) -> list[int]:
    """The positions of the inputs that have elements: only these are given to the shard_map."""
    return [n for n, value in enumerate(program.inputs) if program.local_bytes(value)]


def _without_empty(
    program: ShardedProgram, full: Sequence[int], local: Callable[..., tuple[jax.Array, ...]]
) -> Callable[..., tuple[jax.Array, ...]]:
    """`local` as a function of the inputs `full`; those without elements are made in it.

    XLA cannot compile a shard_map all of whose operands have no elements.
    """

    def run(*given: jax.Array) -> tuple[jax.Array, ...]:
        by_position = dict(zip(full, given, strict=True))
        return local(
            *(
                by_position[n] if n in by_position else _empty(program, value)
                for n, value in enumerate(program.inputs)
            )
        )

    return run


def _empty(program: ShardedProgram, value: int) -> Any:
    """Nothing, of a value's type; what has no bytes since no derivative is there (float0) stands as booleans inside."""
    v = program.values[value]
    dtype = "bool" if v.tensor.dtype == FLOAT0 else v.tensor.dtype
    return untyped_jax.numpy.zeros(v.placement.local_shape(v.tensor.shape, program.mesh), dtype)
