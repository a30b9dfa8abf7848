"""Paths: results that XLA's fusion never computes again (`ComputeGloballyUnfusible`).

Computing what has several large operands again inside each of its readers would read more, so it is done only where it
need not be written at all: where every reader could hold all that lies between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autopar.backends.xla_cpu.node import Node, read_inside


def kept_whole(nodes: Sequence[Node], readers: Mapping[int, Sequence[int]]) -> set[int]:
    """The positions of the loops, not unary and read by several, of which some reader also reads, on another path, what
    is made of them by something that it cannot hold.

    Args:
      nodes: of one computation, readers behind makers.
      readers: the positions of the nodes that read each buffer.
    """
    search = _Paths(nodes, readers)
    for n in range(len(nodes)):
        for m in search.makers[n]:
            if m in search.wide and m not in search.found and not search.holds_all(m, n):
                search.found.add(m)
    return search.found


@dataclass(eq=False)
class _Paths:
    """`makers`: of what each node reads. `before`: the nodes that each depends on, as bits. `wide`: those asked about.
    `found`: those that are not computed again.
    """

    nodes: Sequence[Node]
    readers: Mapping[int, Sequence[int]]
    found: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        maker = {value: n for n, node in enumerate(self.nodes) for value in node.outs}
        self.makers = [
            tuple(dict.fromkeys(maker[v] for v in node.ins if v in maker)) for node in self.nodes
        ]
        self.wide = {n for n, node in enumerate(self.nodes) if self._is_wide(node)}
        self.before: list[int] = []
        for n, node in enumerate(self.nodes):
            mask = 0
            for m in {*self.makers[n], *(maker[v] for v in read_inside(node) if v in maker)}:
                mask |= self.before[m] | 1 << m if m < n else 0
            self.before.append(mask)

    def _is_wide(self, node: Node) -> bool:
        return (
            node.kind == "loop" and len(node.outs) == 1 and not node.unary and self._reads(node) > 1
        )

    def _reads(self, node: Node) -> int:
        return len(self.readers.get(node.outs[0], ()))

    def _holds(self, made: int, reader: int) -> bool:
        """Whether `made` may be computed inside a loop that reads it."""
        node = self.nodes[made]
        if node.kind != "loop" or made in self.found:
            return False
        return not node.dear or not (self.nodes[reader].spreads or self._reads(node) > 1)

    def holds_all(self, wanted: int, reader: int) -> bool:
        """Whether `reader` could hold `wanted` and all that lies between them."""
        waiting = [reader]
        seen = {reader}
        while waiting:
            n = waiting.pop()
            if self.nodes[n].kind != "loop":
                return False
            between = [m for m in self.makers[n] if m == wanted or self.before[m] >> wanted & 1]
            if not all(self._holds(m, n) for m in between):
                return False
            waiting.extend(m for m in between if m != wanted and m not in seen)
            seen.update(between)
        return True
