"""Blocks: what a step does, folded: operators that repeat as layers do are one row for each phase."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from autopar.core.program import Compute, Move, ShardedProgram
from autopar.core.recompute import with_recomputed
from autopar.passes.schedule import StepSchedule
from autopar.search.task import Planned

_FEW = 3
"""Operators that come less often than this are no layers."""
_FUNCTION = re.compile(r"\((\w+)\)")
_PHASES = ("forward", "recompute", "backward", "update")


@dataclass(frozen=True)
class BlockRow:
    """What runs `count` times in a step, as a layer does: the function that takes most of its time, and its phase.

    `compute_s` and `communication_s` are seconds of a step for all of them, nothing overlapped; `exposed_s` is how much
    longer its collectives make the step.
    """

    name: str
    phase: str
    count: int
    compute_s: float
    communication_s: float
    exposed_s: float


@dataclass
class _Sums:
    functions: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    compute_s: float = 0.0
    communication_s: float = 0.0
    exposed_s: float = 0.0


def block_rows(planned: Planned, step: StepSchedule) -> tuple[BlockRow, ...]:
    """The blocks of a step: by phase, those that come most often first."""
    program = planned.program
    keys = phases_and_counts(planned)
    owners = owners_of(program)
    found: dict[tuple[str, int], _Sums] = defaultdict(_Sums)
    for event in step.events:
        one = event.instruction
        if isinstance(one, Compute):
            sums = found[keys[one.op.id]]
            sums.compute_s += event.time_s * event.runs
            for name in function_of(one.op.source):
                sums.functions[name] += event.time_s * event.runs
        else:
            owner = owners.get(one.outs[0]) if one.outs else None
            sums = found[keys[owner] if owner is not None else ("update", 1)]
            if one.is_collective:
                sums.communication_s += event.time_s * event.runs
                sums.exposed_s += float(event.weight_s)
            else:
                sums.compute_s += event.time_s * event.runs

    order = sorted(found, key=lambda key: (_PHASES.index(key[0]), -key[1]))
    rows = (_row(*key, found[key]) for key in order)
    return tuple(row for row in rows if row.compute_s or row.communication_s)


def _row(phase: str, count: int, sums: _Sums) -> BlockRow:
    name = max(sums.functions, key=lambda name: sums.functions[name], default="")
    return BlockRow(name, phase, count, sums.compute_s, sums.communication_s, sums.exposed_s)


def function_of(source: str) -> list[str]:
    """The function in which a line of source stands ("model.py:41 (mlp)"), if that is known."""
    return _FUNCTION.findall(source)[-1:]


def phases_and_counts(planned: Planned) -> Mapping[int, tuple[str, int]]:
    """The phase of every operator, and how often what it belongs to comes in a step."""
    graph = planned.graph
    places = places_of(planned)
    copies = Counter(places)

    def key(op_id: int) -> tuple[str, int]:
        op = graph.ops[op_id]
        count = round(copies[places[op_id]] * graph.tree.weight(op.region))
        phase = op.phase if op.recomputes is None else "recompute"
        return phase, count if count >= _FEW else 1

    return {op.id: key(op.id) for op in graph.ops}


def places_of(planned: Planned) -> Sequence[object]:
    """The place of every operator in what repeats, as layers do; of one that runs once more, that of its original."""
    graph = planned.task.graph
    if planned.rewritten is None:
        return graph.repeats
    return with_recomputed(graph, planned.plan.recomputed).places


def owners_of(program: ShardedProgram) -> Mapping[int, int]:
    """The operator that each moved value is for: its first reader, or the one that made it where none reads it."""
    found = _readers(program)
    for one in program.instructions:
        if isinstance(one, Compute):
            made = chain(one.outs, *(exchange.outs for exchange in one.exchanges))
            for value in made:
                found.setdefault(value, one.op.id)
        elif isinstance(one, Move):
            for before, after in zip(one.ins, one.outs, strict=True):
                if before in found:
                    found.setdefault(after, found[before])
    return found


def _readers(program: ShardedProgram) -> dict[int, int]:
    """The first operator that reads each value, as it is or moved."""
    found: dict[int, int] = {}
    for one in reversed(program.instructions):
        if isinstance(one, Compute):
            found.update((value, one.op.id) for value in one.ins)
        elif isinstance(one, Move):
            pairs = zip(one.ins, one.outs, strict=True)
            found.update((before, found[after]) for before, after in pairs if after in found)
    return found
