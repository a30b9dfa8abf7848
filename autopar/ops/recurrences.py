"""Recurrences: what is made anew in every round, or layer, of what it was in the one before, not only added to.

A sum may be carried in parts: each device adds to its own. What is made anew may not. If part of that is made of the
whole, which takes a reduction, and the rest of each device's own part, then parts may grow from round to round where
the whole does not, until nothing is left of it: by 1e13 in 120 rounds of a Kalman filter's gradient in float32. So
loops carry it whole or split; and where rounds are written out, what was reduced is not made a part of a sum again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from autopar.core.graph import OpGraph, OpNode
from autopar.core.memo import once_per_graph
from autopar.core.regions import BOUNDARY
from autopar.ops.traits import traits_of

_EVERY = frozenset(
    {
        "add",
        "add_any",
        "concatenate",
        "convert_element_type",
        "copy",
        "copy_p",
        "name",
        "neg",
        *BOUNDARY,
    }
)
"""Operators that add up operands, or pass on their elements, at most once each."""
_FIRST = frozenset({"pad", "scatter-add", "slice", "dynamic_slice", "dynamic_update_slice", "sub"})
"""Those that do so with their first operand; its elements that they leave out, or write over, are gone."""
_FEWEST = 8
"""Places of fewer operators are not looked at: in fewer rounds nothing grows by much."""


@once_per_graph
def written_out(graph: OpGraph) -> frozenset[int]:
    """The ids of the tensors of repeated layers (`OpGraph.repeats`) that are made, by more than sums, of their like."""
    count = Counter(graph.repeats)
    bit: dict[int, int] = {}
    for first, times in count.items():
        if times >= _FEWEST:
            bit[first] = 1 << len(bit)

    known = _Dependences()
    found: set[int] = set()
    for op, first in zip(graph.ops, graph.repeats, strict=True) if bit else ():
        known.grow(graph, op)
        own = bit.get(first, 0)
        for tensor in op.outs if own else ():
            sums, others = known.of[tensor.id]
            known.of[tensor.id] = sums | own, others
            if others & own:
                found.add(tensor.id)
    return frozenset(found)


@once_per_graph
def recurring(graph: OpGraph) -> frozenset[int]:
    """The ids of the carry_in operators of loops whose value depends on that of the round before by more than sums."""
    found: set[int] = set()
    entering: dict[int | None, list[int]] = {}
    leaving = {carry: out for out, carry in graph.loop_carries.items()}
    for carry in leaving:
        entering.setdefault(graph.ops[carry].region, []).append(carry)

    for region, carries in entering.items():
        if region is not None:
            found |= _of_loop(graph, region, carries, leaving)
    return frozenset(found)


def _of_loop(graph: OpGraph, region: int, carries: list[int], leaving: dict[int, int]) -> set[int]:
    """Those of one loop that are on a cycle, of dependences from round to round, that is not made of sums alone."""
    known = _Dependences()
    for n, carry in enumerate(carries):
        known.of[graph.ops[carry].outs[0].id] = 1 << n, 0
    first, last = graph.spans[region]
    inside = [op for op in graph.ops[first : last + 1] if op.id not in carries]
    grown = inside
    while grown:
        grown = [op for op in inside if known.grow(graph, op)]

    sums, others = zip(
        *[known.of.get(graph.ops[leaving[c]].outs[0].id, (0, 0)) for c in carries], strict=True
    )
    reached = [a | b for a, b in zip(sums, others, strict=True)]  # by carry: of which it is made
    for middle in range(len(carries)):
        reached = [r | reached[middle] if r >> middle & 1 else r for r in reached]

    def is_on_cycle(n: int) -> bool:
        """Whether one of those that n is made of, and that are made of it, is made of one of them by more than sums."""
        around = [
            m
            for m in range(len(carries))
            if (reached[m] >> n & 1 and reached[n] >> m & 1) or m == n
        ]
        return any(others[m] >> k & 1 for m in around for k in around)

    return {carry for n, carry in enumerate(carries) if is_on_cycle(n)}


@dataclass(eq=False)
class _Dependences:
    """By tensor the carries of which it is made, as bits: by sums alone, and otherwise."""

    of: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def grow(self, graph: OpGraph, op: OpNode) -> bool:
        """Takes up what an operator makes, and what that is in the next round of a loop inside; whether it was new."""
        sums = 0
        others = 0
        for position, tensor in enumerate(op.ins):
            by_sums, otherwise = self.of.get(tensor.id, (0, 0))
            if _adds(op, position):
                sums |= by_sums
            else:
                others |= by_sums
            others |= otherwise

        made = [tensor.id for tensor in op.outs]
        entering = graph.loop_carries.get(op.id)
        if entering is not None:
            made.append(graph.ops[entering].outs[0].id)
        grown = False
        for tensor in made:
            before = self.of.get(tensor, (0, 0))
            after = before[0] | sums, before[1] | others
            grown = grown or after != before
            self.of[tensor] = after
        return grown


def _adds(op: OpNode, position: int) -> bool:
    """Whether what an operator makes has the elements of this operand, or sums with them, and of each one at most."""
    if op.kind in _EVERY or traits_of(op.kind).rearranges in ("reshapes", "moves"):
        return True
    if op.kind == "select_n":
        return position > 0
    return op.kind in _FIRST and position == 0
