"""Donation: arguments whose memory the results of a step could take, and what a device would save."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

from autopar.core.graph import OpGraph
from autopar.core.memo import once_per_graph
from autopar.memory.in_place import kind_of
from autopar.search.limited_solve import account_of
from autopar.search.task import Planned

_MUCH = 0.01
"""The share of the peak from which it is worth saying."""


@dataclass(frozen=True)
class Donation:
    """Arguments by name, and by how many bytes the peak of a device falls if they are donated."""

    arguments: tuple[str, ...]
    saved_bytes: int

    @property
    def option(self) -> str:
        """What to pass to `autopar.plan` and `compile`."""
        return f"donate_argnames={self.arguments}"


def donation(planned: Planned) -> Donation | None:
    """What donating more would save, by the account of the same program; None where it is under 1 % of the peak.

    Looked at are arguments that are no data, and of which each array has a result of its shape, type and placement.
    """
    found = _matched(planned)
    if not found:
        return None

    positions = tuple(n for numbers in found.values() for n in numbers)
    donating = _donating(planned.graph, positions)
    spent = account_of(donating, planned.program, planned.pricing)
    peak = planned.account.peak_memory_bytes
    saved = peak - spent.peak_memory_bytes
    return Donation(tuple(found), saved) if saved >= _MUCH * peak else None


@once_per_graph
def _donating(graph: OpGraph, positions: tuple[int, ...]) -> OpGraph:
    """`graph` with the inputs at these positions donated too: what is known of it is worked out for one plan of all."""
    return replace(graph, donated=tuple(sorted({*graph.donated, *positions})))


def _matched(planned: Planned) -> dict[str, list[int]]:
    """The positions of the arrays of each argument whose results could all take its memory."""
    graph = planned.graph
    program = planned.program
    kinds = [kind_of(program, value) for value in program.inputs]
    left = Counter(kind_of(program, value) for value in program.outputs)
    left.subtract(kinds[n] for n in graph.donated)

    arguments: dict[str, list[int]] = defaultdict(list)
    for n, tensor in enumerate(graph.inputs):
        named = re.match(r"[A-Za-z_]\w*", tensor.name or "")
        if named is not None:
            arguments[named[0]].append(n)

    apart = {*graph.donated, *graph.batch_inputs}
    found: dict[str, list[int]] = {}
    for name, positions in arguments.items():
        wanted = Counter(kinds[n] for n in positions)
        if apart.isdisjoint(positions) and all(left[kind] >= wanted[kind] for kind in wanted):
            left.subtract(wanted)
            found[name] = positions
    return found
