"""The collectives and the memory of what XLA compiled: a compiled program in, plain records out.

XLA rewrites what was emitted. To see the program as it was emitted, compile it with `compile_unmerged`, which turns
off the passes in `UNMERGED_PASSES` for that one compilation.

What XLA does to collectives on CPU (jax 0.10.2), and the pass that does it. Turned off by `compile_unmerged`:

- cpu-all-reduce-combiner: independent all-reduces over the same groups become one of several operands, at any size.
- cse: two equal collectives of one value become one, behind an optimization_barrier too.
- while-loop-invariant-code-motion: a collective of what a loop leaves unchanged moves out of the loop.

Left on, for without them other things change or nothing compiles:

- algsimp: all_reduce, reduce_scatter and all_gather of a broadcast scalar constant, or of what simplifies to zeros,
  vanish; permute and all_to_all of it stay, and so do collectives of other constants, such as an iota.
- float-normalization-bf16: bf16 runs as f32 in collectives of every kind. float8 runs as f16, int4 as int8, likewise.
  float16, wider types and bool keep their width. (`lax.psum` of bool sums int32: JAX's doing.)
- all-reduce-promotion: the same for bf16 in all_reduce and reduce_scatter, which the CPU has not got.
- simplify-while-loops: a loop of one trip is inlined.
- dead code: a collective whose result no output needs vanishes.
- lowering: all_to_all becomes one instruction of n pieces, one for each device, and vanishes over groups of one device.
  The other kinds stay over groups of one device, and so does a permute of every device to itself.

CPU does not make a reduce_scatter of an all_reduce and a slice, joins no collectives in sequence, and turns no sum of
two all_reduces into an all_reduce of a sum.

On GPU 16-bit integers run as 32-bit ones in all_reduce (all-reduce-promotion), and with them the largest and smallest
of 16-bit floats, which are emitted as integers (`emit.moves`).

On TPU a collective that runs beside computing stands in several fusions, from the one that starts it to the one that
ends it, under one channel: it is counted once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from jax.stages import Compiled, Lowered

from autopar.inspect.hlo_text import (
    Groups,
    HloArray,
    HloInstruction,
    HloModule,
    braced_numbers,
    device_groups,
    parse_module,
)

HloKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"]

UNMERGED_PASSES = "cpu-all-reduce-combiner,cse,while-loop-invariant-code-motion"

_KINDS: dict[str, HloKind] = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
}

_CHANNEL = re.compile(r"\bchannel_id=(\d+)")


@dataclass(frozen=True)
class HloCollective:
    """One collective of a compiled program.

    `operand_bytes` are, for each operand, what one device holds of it before or after, whichever is larger; `dtypes`
    their HLO element types. `groups` are the device numbers of each group, for a permute the pairs (from, to).
    `times` is how often the loops around it run it: 1 outside of loops, None where XLA does not know. A branch of a
    conditional counts as taken.
    """

    kind: HloKind
    operand_bytes: tuple[int, ...]
    dtypes: tuple[str, ...]
    groups: Groups
    times: int | None = 1

    @property
    def size_bytes(self) -> int:
        """The bytes of all operands together: what one run of it moves."""
        return sum(self.operand_bytes)

    @property
    def operand_count(self) -> int:
        """How many tensors it moves: more than one where XLA combined several collectives."""
        return len(self.operand_bytes)

    @property
    def parts(self) -> tuple[HloCollective, ...]:
        """A collective of its own for each operand."""
        return tuple(
            replace(self, operand_bytes=(size,), dtypes=(dtype,))
            for size, dtype in zip(self.operand_bytes, self.dtypes, strict=True)
        )


def compile_unmerged(lowered: Lowered, options: Mapping[str, Any] | None = None) -> Compiled:
    """`lowered`, compiled so that XLA merges, shares and hoists no collectives; for looking at, not for speed.

    `options` are further compiler options, such as those that shorten the compilation.
    """
    compile_with = cast(Any, lowered).compile  # its annotations are incomplete
    return compile_with(
        compiler_options={"xla_disable_hlo_passes": UNMERGED_PASSES, **(options or {})}
    )


def collectives_of(compiled: Compiled) -> tuple[HloCollective, ...]:
    """The collectives of a compiled program, those of loops and branches included, callers before callees.

    Raises:
      ValueError: if XLA gives no text of the program, or text that is not understood.
    """
    text = compiled.as_text()
    if text is None:
        raise ValueError("this backend gives no text of its compiled programs")
    return collectives_in(text)


def collectives_in(text: str) -> tuple[HloCollective, ...]:
    """As `collectives_of`, of a compiled program's HLO text."""
    return tuple(collective for collective, _ in collective_instructions(text))


def collective_instructions(text: str) -> Iterator[tuple[HloCollective, HloInstruction]]:
    """The collectives of a compiled program's HLO text, each with the instruction that it was read from."""
    module = parse_module(text)
    return _walk(module, module.entry, 1, ())


def peak_memory_bytes(compiled: Compiled) -> int:
    """What XLA sets aside on one device: arguments + results + temporaries - what results share with arguments.

    Raises:
      ValueError: if this backend does not tell.
    """
    memory = compiled.memory_analysis()
    if memory is None:
        raise ValueError("this backend does not tell what memory its programs take")
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )


def _walk(
    module: HloModule, computation: str, times: int | None, begun: Collection[str]
) -> Iterator[tuple[HloCollective, HloInstruction]]:
    """The collectives from `computation` on, but for those in it whose channels have `begun` in an earlier fusion."""
    instructions = module.computations[computation]
    results = {instruction.name: instruction.result for instruction in instructions}
    fused: set[str] = set()

    for instruction in instructions:
        opcode = instruction.opcode
        if opcode.endswith(("-done", "-update")):
            continue  # the -start was it
        if kind := _KINDS.get(opcode.removesuffix("-start")):
            if _channel(instruction) not in begun:
                yield _collective(module, kind, instruction, results, times), instruction
            continue
        inside = times
        if opcode == "while":
            trips = module.trip_count(instruction, computation)
            inside = None if times is None or trips is None else times * trips
        for called in instruction.called:
            yield from _walk(module, called, inside, fused)
            if opcode == "fusion":
                fused |= {_channel(member) for member in module.computations[called]}


def _channel(instruction: HloInstruction) -> str:
    """The channel of a collective; "" where it names none."""
    found = _CHANNEL.search(instruction.attributes)
    return found[1] if found else ""


def _collective(
    module: HloModule,
    kind: HloKind,
    instruction: HloInstruction,
    results: dict[str, tuple[HloArray, ...]],
    times: int | None,
) -> HloCollective:
    """The sizes are read off the operands: the results of `-start` instructions repeat them in one way or another."""
    arrays = [array for operand in instruction.operands for array in results[operand]]
    groups = (
        _pairs(instruction)
        if kind == "permute"
        else device_groups(instruction.attributes, module.devices)
    )
    grows = len(groups[0]) if kind == "all_gather" else 1
    sizes = tuple(array.size_bytes * grows for array in arrays)
    dtypes = tuple(array.dtype for array in arrays)
    if kind == "all_to_all" and "dimensions=" not in instruction.attributes:
        sizes = (sum(sizes),)
        dtypes = dtypes[:1]  # one piece for each member of the group

    return HloCollective(kind, sizes, dtypes, groups, times)


def _pairs(instruction: HloInstruction) -> Groups:
    key = "source_target_pairs="
    return braced_numbers(instruction.attributes[instruction.attributes.index(key) + len(key) :])
