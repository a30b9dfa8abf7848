"""Devices that exchange values, simulated one after another: no shard_map, no mesh of JAX, no collective.

A device runs until it sends something of which not all messages are known yet; then the next one runs. When all have
stopped or ended they begin anew, and find more messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Hop

Place = dict[str, int]


class _Stopped(Exception):
    """The device waits for messages."""


@dataclass
class Message:
    """What all devices send at one point of the program; `size_bytes` as in `core.strategy.Exchange`."""

    kind: str
    axes: tuple[str, ...]
    hop: Hop | None
    sent: dict[int, np.ndarray] = field(default_factory=dict)

    def size_bytes(self, mesh: DeviceMesh) -> int:
        grows = mesh.product(self.axes) if self.kind == "all_gather" else 1
        return next(iter(self.sent.values())).nbytes * grows


@dataclass
class _Device:
    """The Exchanger of one device."""

    number: int
    place: Place
    places: Sequence[Place]
    mesh: DeviceMesh
    messages: list[Message]
    step: int = 0

    def permute(self, value: Any, axes: tuple[str, ...], hop: Hop) -> Any:
        sent = self._sent("permute", value, axes, hop)
        mine, count = position(self.place, axes, self.mesh), self.mesh.product(axes)
        sender = next((a for a, b in hop.pairs(count) if b == mine), -1)
        return jnp.asarray(sent[sender] if 0 <= sender < count else np.zeros_like(sent[mine]))

    def all_gather(self, value: Any, axes: tuple[str, ...], dim: int) -> Any:
        sent = self._sent("all_gather", value, axes, None)
        return joined_values([sent[n] for n in range(self.mesh.product(axes))], dim)

    def all_to_all(self, value: Any, axes: tuple[str, ...], split: int, joined: int) -> Any:
        sent = self._sent("all_to_all", value, axes, None)
        mine, count = position(self.place, axes, self.mesh), self.mesh.product(axes)
        return joined_values([np.split(sent[n], count, split)[mine] for n in range(count)], joined)

    def repeat(self, first: int, stop: int, step: Callable[..., Any], state: Any) -> Any:
        for n in range(first, stop):
            state = step(n, state)
        return state

    def _sent(
        self, kind: str, value: Any, axes: tuple[str, ...], hop: Hop | None
    ) -> dict[int, np.ndarray]:
        """What the devices that differ from this one along `axes` only sent, by their position there."""
        if self.step == len(self.messages):
            self.messages.append(Message(kind, axes, hop))
        message = self.messages[self.step]
        self.step += 1
        assert (message.kind, message.axes, message.hop) == (kind, axes, hop), (
            "devices send different things"
        )
        message.sent[self.number] = np.asarray(value)
        if len(message.sent) < len(self.places):
            raise _Stopped
        rest = [axis for axis in self.place if axis not in axes]
        group = [
            n for n, place in enumerate(self.places) if all(place[a] == self.place[a] for a in rest)
        ]
        return {position(self.places[n], axes, self.mesh): message.sent[n] for n in group}


def joined_values(parts: Sequence[np.ndarray], dim: int) -> Any:
    """The parts one after another, put together by numpy: XLA would compile that for every shape."""
    return jnp.asarray(np.concatenate(parts, dim))


def run_devices(
    places: Sequence[Place], mesh: DeviceMesh, run: Callable[[Place, Any], Any]
) -> tuple[list[Any], list[Message]]:
    """What `run(place, exchanger)` returns for every device, and what they sent."""
    messages: list[Message] = []
    while True:
        known = sum(len(message.sent) for message in messages)
        results: list[Any] = []
        for number, place in enumerate(places):
            try:
                results.append(run(place, _Device(number, place, places, mesh, messages)))
            except _Stopped:
                continue
        if len(results) == len(places):
            return results, messages
        if sum(len(message.sent) for message in messages) == known:
            raise AssertionError("some devices wait for others that send nothing")


def position(place: Place, axes: tuple[str, ...], mesh: DeviceMesh) -> int:
    """The position along several axes, major to minor."""
    number = 0
    for axis in axes:
        number = number * dict(mesh.axes)[axis] + place[axis]
    return number
