"""Stretches of the order of sweeps that repeat: where nodes look like others, a period earlier.

Two nodes look alike if their costs are alike and so are their edges, in order: to nodes as far away, or to the same
hub, with matrices that are alike. Layers of a network are such periods, whatever the network.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from autopar.solve.problem.equal_arrays import Same
from autopar.solve.problem.factored_matrix import Matrix
from autopar.solve.problem.problem import Floats, Problem
from autopar.solve.problem.reduction import Bools, Ints
from autopar.solve.trws.arrays import Flat
from autopar.solve.trws.order import HUB

_SPARE = 1  # periods more than are needed: near the ends of a stretch choices are not what they are further in
_PERIODS = 8  # candidates: the most frequent distances of nodes that look alike
_ALIKE = 1e-6  # of an array's largest entry: rounding errors of equal layers may differ


@dataclass(frozen=True)
class Stretch:
    """Positions first <= i < stop, where i looks like i + period; `out` of them, whole periods, can be left out.

    They are those from one of the `sites` on.
    """

    first: int
    stop: int
    period: int
    out: int
    sites: range


@dataclass(frozen=True, eq=False)
class Looks:
    """Numbers of what is alike: `costs` of nodes by position, `kinds` of arcs, and all that is at a position, `whole`.

    An arc's kind is twice its matrix's number, and one more into the node of its columns. `hub`: the nodes with so many
    neighbours that they are near everything; no other node looks like one. `band`: the farthest that two joined nodes
    are apart, hubs aside.
    """

    costs: Ints
    kinds: Ints
    whole: Ints
    hub: Bools
    band: int


def looks_of(problem: Problem, flat: Flat, order: Ints, *, at_a_glance: bool) -> Looks:
    """How nodes and arcs of a problem look, in the order of sweeps; if `at_a_glance`, as far as some entries tell."""
    count, into = len(order), into_of(flat)
    hub = np.diff(flat.near) > HUB
    away = np.where(hub[flat.other], flat.other - 2 * count, flat.other - into)
    kinds = np.empty(len(into), dtype=np.intp)
    matrices, which = problem.matrices
    of_edge = np.array(_alike(matrices, at_a_glance), dtype=np.intp)[which]
    kinds[flat.arcs] = 2 * of_edge[:, None] + np.arange(2)
    arcs, ends = np.stack([away, kinds], axis=1), flat.near.tolist()
    costs = np.array(_alike(problem.node_costs, at_a_glance), dtype=np.intp)[order]
    known: dict[Hashable, int] = {}
    whole = [
        known.setdefault((own, i if is_hub else -1, arcs[ends[i] : ends[i + 1]].tobytes()), len(known))
        for i, (own, is_hub) in enumerate(zip(costs.tolist(), hub.tolist(), strict=True))
    ]
    near = ~hub[flat.other] & ~hub[into]
    band = int(np.abs(flat.other - into)[near].max(initial=0))
    return Looks(costs, kinds, np.array(whole, dtype=np.intp), hub, band)


def stretches_of(looks: Looks, more: int) -> tuple[Stretch, ...]:
    """Disjoint stretches, chosen by how much they can leave out if `more` positions stay than have to; in order."""
    found, whole, band = list[Stretch](), looks.whole, looks.band
    for least in _periods(whole):
        same = np.concatenate([[False], whole[least:] == whole[:-least], [False]])
        ends = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2)
        period = max(1, -(-band // least)) * least  # so long that no edge skips one
        for first, last in ends.tolist():
            stop = last + least
            out = ((stop - first - band) // period - 1 - _SPARE - -(-more // period)) * period  # one stays
            if out > 0:
                sites = range(first + period, stop - out - band + 1)  # a period before, and room for edges behind
                found.append(Stretch(first, stop, period, out, sites))
    chosen: list[Stretch] = []
    for stretch in sorted(found, key=lambda stretch: (-stretch.out, stretch.period, stretch.first)):
        if all(stretch.stop <= other.first or other.stop <= stretch.first for other in chosen):
            chosen.append(stretch)
    return tuple(sorted(chosen, key=lambda stretch: stretch.first))


def into_of(flat: Flat) -> Ints:
    """The node that each arc goes into."""
    return np.repeat(np.arange(len(flat.near) - 1), np.diff(flat.near))


def joined_in(flat: Flat) -> Ints:
    """The positions of the nodes u and v of every edge."""
    return into_of(flat)[flat.arcs]


def _periods(looks: Ints) -> list[int]:
    """The most frequent distances from a node to the next that looks like it."""
    by_look = np.argsort(looks, kind="stable")
    steps = np.diff(by_look)[np.diff(looks[by_look]) == 0]
    periods, counts = np.unique(steps, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:_PERIODS]
    return [int(period) for period in periods[most]]


def _alike(arrays: Iterable[Matrix], at_a_glance: bool) -> list[int]:
    """A number for every array: those of equal numbers are equal up to rounding, as far as looked at."""
    of_array, same = dict[int, int](), Same[Matrix](_rounded, at_a_glance=at_a_glance)
    result: list[int] = []
    for array in arrays:
        if id(array) not in of_array:
            of_array[id(array)] = same.number(array)
        result.append(of_array[id(array)])
    return result


def _rounded(array: Floats) -> Floats:
    scale = float(np.abs(array).max(initial=0.0, where=np.isfinite(array))) or 1.0
    return np.round(array / (_ALIKE * scale)) + 0.0  # + 0: there is no -0
