"""A layer more, beside a row of equal ones: its nodes are found one by one, along edges that are alike.

Two layers that are known say which edges a layer has: within itself, and to the next. From the layer at the end of the
row these lead to nodes that cost alike, and from these to others. Where several fit, the one whose own edges are alike
is taken, or the first; what that makes of it is for others to check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autopar.solve.periodic.period import Looks
from autopar.solve.problem.reduction import Ints
from autopar.solve.trws.arrays import Flat

Arc = tuple[int, int]
"""Its kind, and the node or the place in a layer that it comes from."""


@dataclass(frozen=True)
class Pattern:
    """What equal layers have, by place: arcs within one, `near`, and from the one before or after, `below`, `above`.

    `costs` and `signs` are what nodes cost, and all their arcs, by kind.
    """

    near: Sequence[Sequence[Arc]]
    below: Sequence[Sequence[Arc]]
    above: Sequence[Sequence[Arc]]
    costs: Sequence[int]
    signs: Sequence[Sequence[Arc]]


class Matching:
    """Layers of a problem that look alike, node by node; nodes are positions."""

    def __init__(self, flat: Flat, looks: Looks) -> None:
        self._ends: list[int] = flat.near.tolist()
        self._other, self._kinds, self._looks = flat.other, looks.kinds, looks

    def pattern(self, low: Ints, high: Ints) -> Pattern:
        """What two equal layers have, of which the first is before the other."""
        in_low, in_high = ({v: i for i, v in enumerate(of.tolist())} for of in (low, high))

        def arcs(nodes: Iterable[int], place: dict[int, int]) -> list[list[Arc]]:
            return [[(kind, place[u]) for kind, u in self._arcs(v) if u in place] for v in nodes]

        signs = [self._sign(v) for v in low.tolist()]
        costs: list[int] = self._looks.costs[low].tolist()
        return Pattern(
            arcs(low.tolist(), in_low), arcs(high.tolist(), in_low), arcs(low.tolist(), in_high), costs, signs
        )

    def is_whole(self, layer: Mapping[int, int], pattern: Pattern) -> bool:
        """Whether there is a node for every place, with arcs of the same kinds."""
        signs = enumerate(pattern.signs)
        return all(place in layer and self._sign(layer[place]) == sign for place, sign in signs)

    def beside(self, layer: Ints, links: Sequence[Sequence[Arc]], pattern: Pattern, free: set[int]) -> dict[int, int]:
        """The free nodes that make up a layer beside this one, by place; `links`: arcs into this one from that.

        Places are missing where nothing fits.
        """
        found, waiting = dict[int, int](), deque[tuple[int, int, int]]()
        waiting.extend((v, kind, place) for v, arcs in zip(layer.tolist(), links, strict=True) for kind, place in arcs)
        taken, idle = set[int](), 0
        while waiting:
            v, kind, place = waiting.popleft()
            fit = [u for k, u in self._arcs(v) if k == kind and u in free and u not in taken]
            fit = [u for u in fit if self._looks.costs[u] == pattern.costs[place]]
            fit = [u for u in fit if self._sign(u) == pattern.signs[place]] or fit
            if place in found or not fit:
                continue
            if len(fit) > 1 and idle <= len(waiting):
                waiting.append((v, kind, place))
                idle += 1
                continue
            found[place], idle = fit[0], 0
            taken.add(fit[0])
            waiting.extend((fit[0], kind, other) for kind, other in pattern.near[place])
        return found

    def _arcs(self, v: int) -> list[Arc]:
        """The kinds of arcs into a node, and where they come from."""
        at = slice(self._ends[v], self._ends[v + 1])
        return list(zip(self._kinds[at].tolist(), self._other[at].tolist(), strict=True))

    def _sign(self, v: int) -> list[Arc]:
        """The kinds of arcs into a node, and the hubs that they come from."""
        return sorted((kind, u if self._looks.hub[u] else -1) for kind, u in self._arcs(v))
