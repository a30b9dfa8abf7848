"""The order of devices: by processes, and for TPUs along the torus."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from random import Random

import jax
import pytest

from autopar.emit import several
from autopar.emit.several import in_order, sent


@dataclass(frozen=True)
class Elsewhere:
    """A device as JAX describes one that lies in no torus; GPUs have coordinates all the same."""

    process_index: int
    id: int
    platform: str = "gpu"
    coords: tuple[int, ...] = (0, 0, 0)


@dataclass(frozen=True)
class Chip(Elsewhere):
    """A TPU at x, y, z; processes have 2x2 of them."""

    slice_index: int = 0
    core_on_chip: int = 0


def test_devices_of_one_process_lie_beside_each_other() -> None:
    devices = [Elsewhere(process, 10 * (3 - process) + n) for process in range(3) for n in range(4)]
    assert in_order(Random(0).sample(devices, 12)) == tuple(devices)


def test_chips_are_numbered_along_the_torus() -> None:
    """Row-major: x last; blocks of 2x2 in one process would lie in no line of it. Slices come first."""
    chips = [
        Chip(8 * piece + 2 * (y // 2) + x // 2, 100 * piece + 4 * y + x, "tpu", (x, y, 0), piece)
        for piece, y, x in product(range(2), range(4), range(4))
    ]
    assert in_order(Random(0).sample(chips, 32)) == tuple(chips)


@pytest.mark.parametrize("length", [0, 1, 8, 9, 40])
def test_bytes_are_sent_in_pieces(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "_PIECE_BYTES", 8)
    text = Random(0).randbytes(length)
    assert sent(text, 0, jax.devices()) == text
