"""Exchanges: the collectives that an operator runs inside itself, on local shards inside shard_map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax

from autopar._compat import untyped_jax
from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Hop

Array = jax.Array


class Exchanger(Protocol):
    """Sends values between the devices along mesh axes, which stand in mesh order."""

    def permute(self, value: Array, axes: tuple[str, ...], hop: Hop) -> Array:
        """What this device is sent when every one sends `value` as `hop` says; zeros if nothing."""
        ...

    def all_gather(self, value: Array, axes: tuple[str, ...], dim: int) -> Array:
        """The values of all devices, joined along `dim` in the order of the devices; the same on all of them."""
        ...

    def all_to_all(self, value: Array, axes: tuple[str, ...], split: int, joined: int) -> Array:
        """The parts of `split` that all devices have for this one, joined along `joined` in their order."""
        ...

    def repeat(
        self,
        first: int,
        stop: int,
        step: Callable[[Any, list[Array]], list[Array]],
        state: list[Array],
    ) -> list[Array]:
        """`state` after `step`, which may exchange, for every number from `first` to below `stop`."""
        ...


class InShardMap:
    """Exchanges by JAX's collectives; values must vary over the axes."""

    def __init__(self, mesh: DeviceMesh) -> None:
        """For the devices of `mesh`."""
        self.mesh = mesh

    def permute(self, value: Array, axes: tuple[str, ...], hop: Hop) -> Array:
        """As `Exchanger`."""
        return untyped_jax.lax.ppermute(value, axes, hop.pairs(self.mesh.product(axes)))

    def all_gather(self, value: Array, axes: tuple[str, ...], dim: int) -> Array:
        """As `Exchanger`."""
        return untyped_jax.lax.all_gather(value, axes, axis=dim, tiled=True, to="invarying")

    def all_to_all(self, value: Array, axes: tuple[str, ...], split: int, joined: int) -> Array:
        """As `Exchanger`."""
        return untyped_jax.lax.all_to_all(value, axes, split, joined, tiled=True)

    def repeat(
        self,
        first: int,
        stop: int,
        step: Callable[[Any, list[Array]], list[Array]],
        state: list[Array],
    ) -> list[Array]:
        """As `Exchanger`."""
        return untyped_jax.lax.fori_loop(first, stop, step, state) if first < stop else state
