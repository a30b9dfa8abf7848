"""Training steps for TPUs in shape only, as models and with shardings by hand that XLA completes, and chips to compile
them for, which need not be there.

Needs libtpu (the extra `tpu-aot`), whose compiler runs on any CPU host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from autopar.emit.measure import use_virtual_devices
from autopar.emit.several import in_order
from benchmarks import models, sparse_models
from benchmarks.accuracy_plans import grid_sizes
from benchmarks.models import Model

MISSING = (
    "this benchmark needs libtpu, the compiler for TPUs, which is not installed: pip install '.[tpu-aot]' (1.3 GB; the "
    "licence is the vendor's). No TPU is needed."
)
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",  # or libtpu looks for the metadata of a cloud machine, and waits
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nothing runs on a TPU, so other processes may have it
}


def sized(name: str, devices: int) -> Model:
    """A model in shape only, whose batch grows with the devices. The GPT drops nothing: to draw random numbers would
    make its programs larger, and longer to compile.
    """
    more = devices // 16
    if name == "mlp":
        return models.mlp((1024, 4096, 1024), batch=2048 * more, drawn=False)
    if name == "gpt":
        return models.gpt(
            1, width=1024, heads=8, vocab=4096, sequence=128, batch=32 * more, rate=0, drawn=False
        )
    if name == "cnn":
        return models.cnn((16, 64, 128), classes=1024, image=32, batch=128 * more, drawn=False)
    return sparse_models.experts(
        16, 1024, 2048, groups=64 * more, tokens=256, classes=1024, drawn=False
    )


NAMES = ("mlp", "gpt", "cnn", "experts")


def arguments(model: Model) -> tuple[Any, ...]:
    """The step's arguments in shape only, floats in bfloat16: the type that TPUs multiply."""

    def spec(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            leaf.shape, jnp.bfloat16 if leaf.dtype == np.float32 else leaf.dtype
        )

    return jax.tree.map(spec, (model.state, *model.batch))


def tpu_devices(cluster: str) -> tuple[Any, ...]:
    """The chips of a cluster such as "tpu-v5e-4x4", in the order of its torus.

    Raises:
      SystemExit: if libtpu is not installed; the message says what to install.
    """
    if find_spec("libtpu") is None:
        raise SystemExit(MISSING)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    use_virtual_devices(1)
    from jax.experimental import topologies

    topology = cluster.removeprefix("tpu-").replace("-", ":")
    return in_order(topologies.get_topology_desc(topology, "tpu").devices)


def by_hand(
    model: Model, args: tuple[Any, ...], devices: Sequence[Any]
) -> dict[str, Callable[[], Any]]:
    """What gives JAX's Lowered of the step with shardings by hand, by the name of how it is sharded."""
    count = len(devices)
    rows, columns = grid_sizes(count)
    line, grid = _mesh(devices, {"data": count}), _mesh(devices, {"data": rows, "model": columns})

    def split(x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(grid, P(*axes)))

    whole = jax.tree.map(lambda _: P(), args[0])
    shards = jax.tree.map(lambda leaf: shard_spec(leaf.shape, count), args[0])
    return {
        "data parallel, XLA": lambda: _lowered(model.step(), args, whole, line),
        "FSDP, XLA": lambda: _lowered(model.step(), args, shards, line),
        "Megatron, XLA": lambda: _lowered(model.step(split), args, model.state_specs(), grid),
    }


def shard_spec(shape: tuple[int, ...], count: int) -> P:
    """An array's largest dim that divides into `count` parts on "data", as fully sharded data parallelism has it."""
    able = [dim for dim, size in enumerate(shape) if size % count == 0]
    if not able:
        return P()
    largest = max(able, key=lambda dim: shape[dim])
    return P(*["data" if dim == largest else None for dim in range(len(shape))])


def _lowered(step: Any, args: tuple[Any, ...], specs: Any, mesh: Mesh) -> Any:
    state = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P)
    )
    batch = [NamedSharding(mesh, P("data"))] * (len(args) - 1)
    jitted = jax.jit(
        step, in_shardings=(state, *batch), out_shardings=(state, NamedSharding(mesh, P()))
    )
    return jitted.lower(*args)


def _mesh(devices: Sequence[Any], sizes: dict[str, int]) -> Mesh:
    kinds = (jax.sharding.AxisType.Auto,) * len(sizes)
    return Mesh(np.array(devices).reshape(tuple(sizes.values())), tuple(sizes), axis_types=kinds)
