"""Predict: the memory that XLA's CPU compiler sets aside for a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.backends.backend import SetAside, Workspace
from autopar.backends.xla_cpu.arena import arena_bytes
from autopar.backends.xla_cpu.donate import with_copies, with_own
from autopar.backends.xla_cpu.draft import FIRST_NEW
from autopar.backends.xla_cpu.fusion import fused
from autopar.backends.xla_cpu.join import joined
from autopar.backends.xla_cpu.order import post_order
from autopar.backends.xla_cpu.place import END, HeldBuffer, Room, Timed, held, left_over
from autopar.backends.xla_cpu.unfold import Unfolding
from autopar.core.program import ShardedProgram

LATER = 2
MORE_IN = 256
"""By how many kernels longer all temporaries may live, for upper estimates, and in how many kernels by one more. Where
XLA's order differs by a kernel or two, other gaps are left between buffers: of 220 programs 12 needed over 2 % more
than predicted (17 % at most), none more than the largest of the prediction, of these, and of the account in program
order."""


def delays(kernels: int) -> tuple[int, ...]:
    """By how many kernels longer the temporaries of a program of so many may live, ascending."""
    return tuple(dict.fromkeys((LATER, LATER + kernels // MORE_IN)))


def set_aside(program: ShardedProgram, donated: Sequence[int], workspace: Workspace) -> SetAside:
    """Bytes of one device: arguments + results + temporaries - results that lie in donated arguments.

    Args:
      program: routed (no Convert left).
      donated: positions of the inputs whose memory outputs may take.
      workspace: bytes that an operator takes while it runs, given the local bytes of its operands.
    """
    work = Unfolding(program, workspace)
    nodes = work.nodes()
    outputs = tuple(dict.fromkeys(work.at(value) for value in program.outputs))
    taken = {work.at(value): given for value, given in _donations(program, donated).items()}
    kernels = joined(fused(nodes.nodes, outputs))
    timed = Timed(nodes.sizes)
    kernels = with_copies(kernels, taken, work.sizes, 2 * FIRST_NEW)
    kernels = with_own(kernels, program.inputs, work.sizes, 3 * FIRST_NEW)
    timed.run(kernels, outputs)
    timed.write_over(outputs)
    rooms: list[Room] = []
    results = [value for value in outputs if value in timed.made]
    ranks = post_order(kernels, results)
    for value in sorted(
        results, key=ranks.__getitem__, reverse=True
    ):  # of one size the last made is tried first
        busy = [(timed.made[value], END)]
        if value in taken:
            busy.append((-1, min(timed.last.get(taken[value], -1), timed.made[value] - 1)))
        rooms.append((nodes.sizes[value], busy))

    arena = left_over(held(timed, frozenset({*program.inputs, *results})), rooms, ranks)
    fixed = sum(nodes.sizes[value] for value in (*program.inputs, *program.outputs))
    fixed -= sum(nodes.sizes[value] for value in taken)
    predicted, *later = (
        fixed + arena_bytes(_longer(arena, later), ranks) for later in (0, *delays(len(kernels)))
    )
    return SetAside(predicted, tuple(later))


def _longer(buffers: Sequence[HeldBuffer], later: int) -> list[HeldBuffer]:
    return [replace(one, last=one.last + later) for one in buffers]


def _donations(program: ShardedProgram, donated: Sequence[int]) -> dict[int, int]:
    """The donated input in which an output lies: the first of its shape, type and placement."""

    def kind(value: int) -> tuple[object, ...]:
        v = program.values[value]
        return v.tensor.shape, v.tensor.dtype, v.placement

    offered: dict[tuple[object, ...], list[int]] = {}
    for position in donated:
        offered.setdefault(kind(program.inputs[position]), []).append(program.inputs[position])
    found: dict[int, int] = {}
    for value in program.outputs:
        if value not in found and offered.get(kind(value)):
            found[value] = offered[kind(value)].pop(0)
    return found
