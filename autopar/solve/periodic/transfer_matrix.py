"""A chain of parts, each with what it costs for all choices at the nodes it shares, and the cheapest choice of all.

R. Bellman, "Dynamic Programming" (1957).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autopar.solve.certificate.proof import Eliminate, Pass, Piece, Pieces, Proof
from autopar.solve.periodic.part_tables import Within
from autopar.solve.periodic.parts import Part, Row
from autopar.solve.problem.problem import Floats, objective
from autopar.solve.problem.reduction import Choice, Ints
from autopar.solve.trws.ascent import Answer


@dataclass(frozen=True, eq=False)
class _Step:
    """A part of the chain: the strategies common to it and the part before at what they share, by place in either's.

    `least[o, h]` is the place, among the common ones, of what is cheapest before it.
    """

    before: tuple[Ints, ...]
    here: tuple[Ints, ...]
    least: Ints


@dataclass(frozen=True, eq=False)
class Chain:
    """Tables of all kinds of parts in a row, added up from one end to the other."""

    row: Row
    found: dict[int, Within]

    @cached_property
    def kinds(self) -> list[Part]:
        """The part that each of the row is like."""
        return [part for part in self.row.parts for _ in range(part.copies)]

    @cached_property
    def hubs(self) -> dict[int, Ints]:
        """The strategies left of every hub that is shared."""
        left: dict[int, Ints] = {}
        for part in self.row.parts:
            for k, position in enumerate(self._shared(part)):
                if self.row.layers.hub[position]:
                    ids = self.found[part.number].ids[k]
                    left[position] = np.intersect1d(left[position], ids) if position in left else ids
        return dict(sorted(left.items()))

    def _shared(self, part: Part) -> list[int]:
        return [int(part.nodes[i]) for i in part.kept]

    def _places(self, part: Part) -> tuple[list[int], list[int], dict[int, int]]:
        """Which axes of its table are visitors from the part before, which its own, and that of each hub."""
        shared, hub = self._shared(part), self.row.layers.hub
        near = [k for k, position in enumerate(shared) if not hub[position]]
        own = [k for k in near if part.kept[k] < part.own]
        return [k for k in near if k not in own], own, {p: k for k, p in enumerate(shared) if hub[p]}

    def _table(self, part: Part, here: Sequence[Ints]) -> Floats:
        """Its table: an axis for each visitor (these strategies), for each of its own, and for every hub."""
        visitors, own, hubs = self._places(part)
        of = self.found[part.number]
        table = of.table
        for k, places in zip(visitors, here, strict=True):
            table = table.take(places, axis=k)
        for position, k in hubs.items():
            table = table.take(np.searchsorted(of.ids[k], self.hubs[position]), axis=k)
        table = table.transpose([*visitors, *own, *(hubs[p] for p in self.hubs if p in hubs)])
        lengths = [len(ids) if p in hubs else 1 for p, ids in self.hubs.items()]
        return table.reshape((*table.shape[: len(visitors) + len(own)], *lengths))

    @cached_property
    def _steps(self) -> tuple[list[_Step], Floats]:
        """The steps, and what all cost by the strategies of the hubs."""
        steps, total = list[_Step](), self._table(self.kinds[0], ())
        known: dict[tuple[int, int], tuple[tuple[Ints, ...], tuple[Ints, ...], Floats]] = {}
        for one, two in zip(self.kinds, self.kinds[1:], strict=False):
            key = (one.number, two.number)
            if key not in known:
                before, here = self._common(one, two)
                known[key] = (before, here, self._table(two, here))
            before, here, table = known[key]
            for axis, places in enumerate(before):
                total = total.take(places, axis=axis)
            if not total.size:
                return [], np.full(1, np.inf)
            hubs, shape = total.shape[len(before) :], table.shape[len(before) :]
            flat = total.reshape((-1, *[1] * (len(shape) - len(hubs)), *hubs))
            joint = flat + table.reshape((flat.shape[0], *shape))
            steps.append(_Step(before, here, joint.argmin(axis=0)))
            total = joint.min(axis=0)
        return steps, total

    def _common(self, one: Part, two: Part) -> tuple[tuple[Ints, ...], tuple[Ints, ...]]:
        own, visitors = self._places(one)[1], self._places(two)[0]
        pairs = [
            np.intersect1d(self.found[one.number].ids[i], self.found[two.number].ids[k], return_indices=True)[1:]
            for i, k in zip(own, visitors, strict=True)
        ]
        return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)

    def answer(self) -> Answer:
        """The cheapest choice, and the bound on all, with its proof."""
        total = self._steps[1]
        cost = float(total.min(initial=np.inf))
        lost = self.row.lost
        least = sum(part.copies * self.found[part.number].least for part in self.row.parts)
        cap = least + min(of.upper - of.least for of in self.found.values())
        choice = self._choice() if cost < np.inf else None
        worth = np.inf if choice is None else objective(self.row.problem, choice)
        return Answer(choice, worth, min(cost, cap) - lost, self._proof())

    def _choice(self) -> Choice:
        steps, total = self._steps
        at_hub = np.unravel_index(int(total.argmin()), total.shape)
        hubs = {p: int(i) for p, i in zip(self.hubs, at_hub, strict=True)}
        strategies, own = np.zeros(len(self.row.order), dtype=np.intp), ()
        for p in range(len(self.kinds) - 1, -1, -1):
            part = self.kinds[p]
            visitors, mine, of_hub = self._places(part)
            entry = [0] * len(part.kept)
            for k, i in zip(mine, own, strict=True):
                entry[k] = i
            for position, k in of_hub.items():
                ids = self.found[part.number].ids[k]
                entry[k] = int(np.flatnonzero(ids == self.hubs[position][hubs[position]])[0])
            if p:
                step = steps[p - 1]
                at = int(step.least[(*own, *hubs.values())])
                places = np.unravel_index(at, tuple(len(ids) for ids in step.here))
                for k, ids, i in zip(visitors, step.here, places, strict=True):
                    entry[k] = int(ids[i])
                own = tuple(int(ids[i]) for ids, i in zip(step.before, places, strict=True))
            nodes, count = self.row.nodes(p)
            strategies[nodes[:count]] = self.found[part.number].choice(entry)[:count]
        found = np.empty_like(strategies)
        found[self.row.order] = strategies
        return tuple(found.tolist())

    def _proof(self) -> Proof:
        row, hub = self.row, self.row.layers.hub
        pieces, shared = list[Piece](), dict[int, None]()
        first: dict[int, tuple[int, Ints]] = {}
        for p, part in enumerate(self.kinds):
            nodes, own = row.nodes(p)
            shared |= {int(v): None for v in nodes[list(part.kept)] if not hub[v]}
            like, ends = first.setdefault(part.number, (p, _ends(part)))
            steps = self.found[part.number].proof if like == p else ()
            pieces.append(Piece(row.order[nodes], own, ends, part.kept, like, steps))
        in_order: list[int] = row.order[[*shared, *self.hubs]].tolist()
        name = {v: i for i, v in enumerate(sorted(in_order))}
        return (Pass(row.moved()), Pieces(tuple(pieces)), Eliminate(tuple(name[v] for v in in_order)))


def _ends(part: Part) -> Ints:
    return np.array([(edge.u, edge.v) for edge in part.problem.edges], dtype=np.intp).reshape(-1, 2)
