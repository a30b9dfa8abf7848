"""What a program takes that XLA compiled for TPUs, as the compiler itself estimates it: HLO text in, numbers out.

The TPU compiler writes `"estimated_cycles":"N"` beside the fusions, copies and products that it has a cost model for.
Collectives, copies that run beside computing (`copy-start`, `slice-start`) and new layouts by `reshape` have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from autopar.inspect.hlo_text import HloInstruction, HloModule, parse_module
from benchmarks.compiled_collectives import communicated, rounds
from cost_models import Cluster

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
MATRIX_UNITS = {"tpu-v5e": 4, "tpu-v5p": 8}
"""The units of 128 x 128 multiply-adds of a chip (Google Cloud documentation, 'TPU v5e' and 'TPU v5p')."""


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
    """What the program with this HLO text takes on `cluster`, of TPUs in `MATRIX_UNITS`, in whose order its devices are
    numbered.

    Raises:
      UnknownRounds: for a loop whose rounds the compiler does not know.
      ValueError: for text that is not understood.
    """
    module = parse_module(text)
    estimates = list(estimated_cycles(module))
    cycles = sum(cycles for _, cycles in estimates)
    flops_per_cycle = MATRIX_UNITS[cluster.device.name] * 128 * 128 * 2
    return Compiled(
        cycles,
        sum(
            cycles
            for instruction, cycles in estimates
            if instruction.opcode in {"copy", "transpose"}
        ),
        cycles * flops_per_cycle / cluster.device.peak_flops_per_s["bfloat16"],
        *communicated(text, cluster),
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
        inside = times * rounds(instruction.trip_count) if instruction.opcode == "while" else times
        for called in instruction.called:
            yield from _estimates(module, called, inside)
