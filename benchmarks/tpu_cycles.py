"""What a program takes that XLA compiled for TPUs, as the compiler itself estimates it: HLO text in, numbers out.

The TPU compiler writes `"estimated_cycles":"N"` beside the fusions, copies and products that it has a cost model for.
Collectives, copies that run beside computing (`copy-start`, `slice-start`) and new layouts by `reshape` have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.inspect.hlo import HloCollective, collectives_in
from autopar.inspect.hlo_text import Groups, HloInstruction, HloModule, parse_module
from cost_models import Cluster, collective_time_s
from cost_models.groups import group_of_devices

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
FLOPS_PER_CYCLE = 4 * 128 * 128 * 2
"""TPU v5e has four units of 128 x 128 multiply-adds (Google Cloud documentation, 'TPU v5e')."""


class UnknownRounds(ValueError):
    """A compiled program has a loop of which the compiler does not say how often it runs: its cycles are not known."""


@dataclass(frozen=True)
class Compiled:
    """A compiled program: cycles of computing on one device, and its collectives at a cluster's prices.

    `copy_cycles` are those of the cycles that only bring arrays into another order or layout.
    """

    cycles: int
    copy_cycles: int
    computing_s: float
    communicating_s: float
    collectives: int
    collective_bytes: int

    @property
    def serial_s(self) -> float:
        """Computing, then communicating."""
        return self.computing_s + self.communicating_s


def compiled_program(text: str, cluster: Cluster) -> Compiled:
    """What the program with this HLO text takes on `cluster`, of TPUs v5e, in whose order its devices are numbered.

    Raises:
      UnknownRounds: for a loop whose rounds the compiler does not know.
      ValueError: for text that is not understood.
    """
    module = parse_module(text)
    estimates = list(estimated_cycles(module))
    found = collectives_in(text)
    cycles = sum(cycles for _, cycles in estimates)
    return Compiled(
        cycles,
        sum(
            cycles
            for instruction, cycles in estimates
            if instruction.opcode in {"copy", "transpose"}
        ),
        cycles * FLOPS_PER_CYCLE / cluster.device.peak_flops_per_s["bfloat16"],
        sum(_rounds(c.times) * _price_s(c, cluster) for c in found),
        sum(_rounds(c.times) for c in found),
        sum(_rounds(c.times) * c.size_bytes for c in found),
    )


def estimated_cycles(module: HloModule) -> Iterator[tuple[HloInstruction, int]]:
    """Instructions that have an estimate, with their cycles: those in loops times the rounds of all loops around them.

    What an estimated instruction calls is part of its estimate. Of the branches of a conditional all count.
    """
    yield from _estimates(module, module.entry, 1)


def _estimates(
    module: HloModule, computation: str, times: int
) -> Iterator[tuple[HloInstruction, int]]:
    for instruction in module.computations[computation]:
        if found := CYCLES.search(instruction.attributes):
            yield instruction, times * int(found[1])
            continue
        inside = times * _rounds(instruction.trip_count) if instruction.opcode == "while" else times
        for called in instruction.called:
            yield from _estimates(module, called, inside)


def _rounds(times: int | None) -> int:
    if times is None:
        raise UnknownRounds("the program has a loop whose rounds the compiler does not know")
    return times


def _price_s(collective: HloCollective, cluster: Cluster) -> float:
    """Seconds by the cluster's links; groups of one device take none."""
    groups = _joined(collective.groups) if collective.kind == "permute" else collective.groups
    if len(groups[0]) == 1:
        return 0.0
    group = group_of_devices(cluster.topology, np.array(groups, dtype=np.int64))
    return collective_time_s(collective.kind, collective.size_bytes, group)


def _joined(pairs: Sequence[tuple[int, ...]]) -> Groups:
    """The devices that a permute's pairs join, as groups of the largest size; a smaller one is left out."""
    group_of: dict[int, set[int]] = {}
    for pair in pairs:
        joined = set[int]().union(*(group_of.get(device, {device}) for device in pair))
        group_of.update(dict.fromkeys(joined, joined))
    groups = {tuple(sorted(group)) for group in group_of.values()}
    most = max(map(len, groups))
    return tuple(sorted(group for group in groups if len(group) == most))
