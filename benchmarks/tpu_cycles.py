"""What a program takes that XLA compiled for TPUs, as the compiler itself estimates it: HLO text in, numbers out.

The TPU compiler writes `"estimated_cycles":"N"` beside the fusions, copies and products that it has a cost model for.
Collectives, copies that run beside computing (`copy-start`, `slice-start`) and new layouts by `reshape` have none, nor
have scatters that it hands to SparseCores, beside which it writes the largest number there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from autopar.inspect.hlo_text import HloInstruction, HloModule, parse_module
from benchmarks.compiled_collectives import Made, communicated, rounds
from cost_models import Cluster

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NONE = 2**63 - 1
"""Written in place of an estimate where there is none."""
MATRIX_UNITS = {"tpu-v5e": 4, "tpu-v5p": 8}
"""The units of 128 x 128 multiply-adds of a chip (Google Cloud documentation, 'TPU v5e' and 'TPU v5p')."""


def compiled_program(text: str, cluster: Cluster) -> Made:
    """What the program with this HLO text takes on `cluster`, of TPUs in `MATRIX_UNITS`, in whose order its devices are
    numbered.

    Raises:
      UnknownRounds: for a loop whose rounds the compiler does not know.
      ValueError: for text that is not understood.
    """
    cycles = sum(cycles for _, cycles in estimated_cycles(parse_module(text)))
    flops_per_cycle = MATRIX_UNITS[cluster.device.name] * 128 * 128 * 2
    seconds = cycles * flops_per_cycle / cluster.device.peak_flops_per_s["bfloat16"]
    return Made(seconds, cycles, *communicated(text, cluster))


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
            cycles = int(found[1])
            yield instruction, times * cycles if cycles < _NONE else 0
            continue
        inside = times
        if instruction.opcode == "while":
            inside *= rounds(module.trip_count(instruction, computation))
        for called in instruction.called:
            yield from _estimates(module, called, inside)
