"""Library: what YNNPACK's sums take in of what is before and behind them, as XLA's `LibraryRewriter` does on CPU.

A sum takes in what alone reads it, and so on; then what nobody else reads of what all of these read, products of
matrices too. What lies inside is not written. All else that any part reads has to be there first, and nothing of it is
written over, as the library's kernels never do that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autopar.backends.xla_cpu.node import Node

LEAST_ELEMENTS = 4096
"""Operators on less, results and operands alike, are not worth a call: sums of less are loops like any other."""
_UNARY = {
    "abs",
    "ceil",
    "cos",
    "erf",
    "exp",
    "expm1",
    "floor",
    "log",
    "log1p",
    "logistic",
    "neg",
    "rsqrt",
    "sign",
    "sin",
}
_BINARY = {"add", "add_any", "sub", "mul", "div", "max", "min", "pow"}
OPERATORS = frozenset(_UNARY | _BINARY | {"sqrt", "square", "tan", "tanh", "integer_pow"})
SUMS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})
TYPES = frozenset({"float32", "float64"})


def with_taken(
    nodes: Sequence[Node], readers: Mapping[int, Sequence[int]], kept: Collection[int]
) -> tuple[Node, ...]:
    """`nodes` with each sum and what it takes in as one kernel, the last sums first.

    Args:
      nodes: of one computation, readers behind makers.
      readers: the positions of the nodes that read each buffer.
      kept: buffers that are written anyhow.
    """
    growth = _Growth(nodes, readers, frozenset(kept))
    found = dict(enumerate(nodes))
    for n in range(len(nodes) - 1, -1, -1):
        if nodes[n].takes and n not in growth.taken:
            group = growth.around(n)
            one = _together([nodes[m] for m in group], nodes[max(group)])
            for m in group:
                del found[m]
            found[max(group)] = one
    return tuple(found[n] for n in sorted(found))


@dataclass(eq=False)
class _Growth:
    """`makers`: the position of the node that makes each buffer. `taken`: the nodes that some kernel has."""

    nodes: Sequence[Node]
    readers: Mapping[int, Sequence[int]]
    kept: frozenset[int]
    taken: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        self.makers = {value: n for n, node in enumerate(self.nodes) for value in node.outs}

    def around(self, start: int) -> list[int]:
        """The nodes that the sum `start` becomes one kernel with, itself first, until no more can be taken."""
        group = dict.fromkeys([start])
        last = start
        count = 0
        while len(group) > count:
            count = len(group)
            while (reader := self._behind(last)) is not None:
                group[reader] = None
                last = reader
            waiting = list(group)
            while waiting:
                before = [m for m in self._before(waiting.pop(0), group) if m not in group]
                group.update(dict.fromkeys(before))
                waiting.extend(before)

        self.taken.update(group)
        return list(group)

    def _behind(self, last: int) -> int | None:
        """What alone reads the result of `last`, if it may be taken in."""
        value = self.nodes[last].outs[0]
        mine = self.readers.get(value, ())
        if (
            len(mine) != 1
            or value in self.kept
            or not self._is_free(mine[0])
            or self.nodes[mine[0]].kind != "loop"
        ):
            return None
        return mine[0]

    def _before(self, n: int, group: Collection[int]) -> list[int]:
        """What makes the operands of a node that nobody outside of `group` reads, if it may be taken in."""
        alone = (
            v
            for v in self.nodes[n].ins
            if v not in self.kept and all(r in group for r in self.readers[v])
        )
        return [
            self.makers[v]
            for v in dict.fromkeys(alone)
            if v in self.makers and self._is_free(self.makers[v])
        ]

    def _is_free(self, n: int) -> bool:
        node = self.nodes[n]
        return (node.library or node.takes) and len(node.outs) == 1 and n not in self.taken


def _together(group: Sequence[Node], last: Node) -> Node:
    """One kernel of a sum, the first of `group`, and the others, which makes what the `last` makes."""
    if len(group) == 1:
        return last
    inside = {value for node in group for value in node.outs}
    ins = dict.fromkeys(value for node in group for value in node.ins if value not in inside)
    return replace(group[0], ins=tuple(ins), outs=last.outs, sums=False)
