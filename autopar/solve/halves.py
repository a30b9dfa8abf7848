"""Two halves of the nodes that no edge joins, and the few between them: a processor of its own sweeps each half.

    up:  first half | second half,  then what is between        down:  what is between,  then first half | second half

In the order of sweeps neighbours are close together, so that few nodes before a place have a neighbour behind it. These
separate what is before from what is behind. Halves are swept from their far ends to them, and back. Whether they are
swept side by side or one after the other is the same to the last bit.
"""

from __future__ import annotations

import numpy as np

from autopar.solve import kernels
from autopar.solve.flat import Flat
from autopar.solve.problem import Floats
from autopar.solve.reduction import Ints
from autopar.solve.threads import side_by_side

_LEAST = 25_000_000  # entries that a sweep reads: of fewer, what is gained goes into the sweeps that halves need more
_WORTH = 0.8  # of the whole's work, at most, for the busier processor
_A_STRATEGY, _AN_ARC = 40, 5000  # entries: what else a sweep takes, as measured


def halved(flat: Flat) -> tuple[Ints, tuple[int, int]]:
    """The order to sweep the places of `flat` in, and its `halves`; their own order where little would be gained.

    Halves end where the busier processor has least to do, what is between included.
    """
    count = len(flat.start) - 1
    places, entries = np.arange(count), flat.tall * flat.wide
    if entries.sum() < _LEAST:
        return places, (0, 0)
    into, strategies = np.repeat(places, np.diff(flat.near)), np.diff(flat.start)
    work = entries + _A_STRATEGY * (strategies[into] + strategies[flat.other]) + _AN_ARC
    work = np.bincount(into, weights=work, minlength=count)
    last = places.copy()  # of a node and its neighbours
    np.maximum.at(last, into, flat.other)
    before = np.concatenate([[0.0], np.cumsum(work)])
    ended = np.cumsum(np.bincount(last + 1, weights=work, minlength=count + 1))[: count + 1]
    between = before - ended  # of the work before each place: that of nodes with an edge across
    span = between + np.maximum(ended, before[-1] - before)
    middle = int(span.argmin())
    if span[middle] > _WORTH * before[-1]:
        return places, (0, 0)
    is_between = (places < middle) & (last >= middle)
    first, second = places[(places < middle) & ~is_between], places[middle:][::-1]
    order = np.concatenate([first, second, np.flatnonzero(is_between)])
    return order, (len(first), len(first) + len(second))


def sweep(flat: Flat, eager: bool, nodes: Floats, messages: Floats) -> None:
    """Every node, upwards and then downwards, collects from where the sweep comes and hands on to where it goes."""
    if flat.halves == (0, 0):
        kernels.sweep(flat, eager, nodes, messages)
        return
    middle, count = flat.halves[1], len(flat.start) - 1
    side_by_side(lambda first, stop: kernels.sweep_up(flat, eager, nodes, messages, first, stop), *flat.halves)
    kernels.sweep_up(flat, eager, nodes, messages, middle, count)
    kernels.sweep_down(flat, eager, nodes, messages, middle, count)
    side_by_side(lambda first, stop: kernels.sweep_down(flat, eager, nodes, messages, first, stop), *flat.halves)
