"""Layouts that people write by hand: where arrays lie, by the roles of dims, as sharding constraints XLA completes.

Rules of thumb of those who write them: an axis of the mesh is used once in an array, and not for a dim that it does not
divide; with fully sharded data parallelism, each parameter and its moments lie in shards of their largest dim, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.models import Model

Dim = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Layout:
    """A layout: the mesh's axes with their sizes, those that each role's dims lie along, major to minor, and those that
    parameters are fully sharded over.
    """

    name: str
    mesh: Mapping[str, int]
    roles: Mapping[str, tuple[str, ...]]
    sharded: tuple[str, ...] = ()

    def spec(self, roles: Sequence[Dim], shape: Sequence[int]) -> P:
        """Where an array of this shape lies whose dims have these roles; dims behind them have none."""
        return P(*self._dims(roles, shape, set()))

    def parameter(self, roles: Sequence[Dim], shape: Sequence[int]) -> P:
        """Where a parameter lies."""
        used = set[str]()
        dims = [*self._dims(roles, shape, used), *[None] * len(shape)][: len(shape)]
        free = tuple(axis for axis in self.sharded if axis not in used)
        count = prod(self.mesh[axis] for axis in free)
        padded = [*roles, *[None] * len(shape)]
        able = [
            n
            for n, size in enumerate(shape)
            if dims[n] is None and padded[n] != "layer" and size % count == 0
        ]
        if free and able:
            dims[max(able, key=lambda n: shape[n])] = free
        return P(*dims)

    def _dims(
        self, roles: Sequence[Dim], shape: Sequence[int], used: set[str]
    ) -> list[tuple[str, ...] | None]:
        """The axes of each dim that has a role; they are `used` then."""
        return [self._axes(role, size, used) for role, size in zip(roles, shape, strict=False)]

    def _axes(self, role: Dim, size: int, used: set[str]) -> tuple[str, ...] | None:
        wanted = self.roles.get(role, ()) if isinstance(role, str) else ()
        axes = tuple(axis for axis in wanted if axis not in used)
        if not axes or size % prod(self.mesh[axis] for axis in axes):
            return None
        used.update(axes)
        return axes


def data_parallelism(devices: int) -> Layout:
    """The batch on all devices, parameters whole."""
    return Layout("data parallelism", {"data": devices}, {"data": ("data",)})


def fsdp(devices: int) -> Layout:
    """The batch on all devices, parameters in shards (Zhao et al. 2023)."""
    return Layout("FSDP", {"data": devices}, {"data": ("data",)}, ("data",))


def context(devices: int) -> Layout:
    """The tokens of each text on all devices, of which each gathers all keys; parameters in shards."""
    roles = {"sequence": ("data",), "context": ("data",)}
    return Layout("FSDP, tokens split", {"data": devices}, roles, ("data",))


def megatron(devices: int, model: int = 4) -> Layout:
    """Columns and rows, with tokens split between them (Korthikanti et al. 2022), beside data parallelism."""
    roles = {"data": ("data",), "model": ("model",), "sequence": ("model",)}
    return Layout("Megatron", {"data": devices // model, "model": model}, roles)


def fsdp_experts(devices: int, experts: int = 4) -> Layout:
    """As FSDP, experts apart."""
    roles = {"data": ("data", "expert"), "expert": ("expert",)}
    mesh = {"data": devices // experts, "expert": experts}
    return Layout("FSDP + experts", mesh, roles, ("data", "expert"))


def tables_apart(devices: int) -> Layout:
    """The batch on all devices, and the rows of tables."""
    return Layout("rows split", {"data": devices}, {"data": ("data",), "rows": ("data",)})


def nodes_split(devices: int) -> Layout:
    """Edges on all devices, and nodes."""
    return Layout("nodes split", {"data": devices}, {"data": ("data",), "nodes": ("data",)})


def lowered(layout: Layout, model: Model, args: Sequence[Any], devices: Sequence[Any]) -> Any:
    """JAX's Lowered of a model's step, the state donated, laid out so."""
    kinds = (jax.sharding.AxisType.Auto,) * len(layout.mesh)
    grid = np.array(devices).reshape(tuple(layout.mesh.values()))
    mesh = Mesh(grid, tuple(layout.mesh), axis_types=kinds)

    def split(x: jax.Array, *roles: Dim) -> jax.Array:
        return jax.lax.with_sharding_constraint(
            x, NamedSharding(mesh, layout.spec(roles, np.shape(x)))
        )

    def place(roles: P, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, layout.parameter(tuple(roles), np.shape(leaf)))

    state = jax.tree.map(
        place, model.state_specs(), args[0], is_leaf=lambda leaf: isinstance(leaf, P)
    )
    batch = [
        NamedSharding(mesh, layout.spec(("data", "sequence")[: len(leaf.shape)], leaf.shape))
        for leaf in args[1:]
    ]
    jitted = jax.jit(
        model.step(split),
        in_shardings=(state, *batch),
        out_shardings=(state, NamedSharding(mesh, P())),
        donate_argnums=0,
    )
    return jitted.lower(*args)
