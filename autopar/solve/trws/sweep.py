"""A sweep: every node, upwards and then downwards, collects from where it comes and hands on to where it goes.

Two processors share large ones, visit by visit. A node is visited upwards once its lower neighbours are, and downwards
once its higher ones are and itself upwards: whoever visits it then reads and writes the same, so that what is found is
the same to the last bit as by one. In the order of sweeps neighbours are close together, but for few, and there is
nearly always a visit that can begin. Where the other processor is busy with something else, one takes all of them.
"""

from __future__ import annotations

import time

import numpy as np

from autopar._jit import FAST
from autopar.solve.problem.problem import Floats
from autopar.solve.trws.arrays import Flat, entries_read
from autopar.solve.trws.kernels import sweep_alone, sweep_shared
from autopar.solve.trws.threads import other_thread, processors

_LEAST = 4_000_000  # entries that a sweep reads: of fewer, what is gained goes into waking the other processor
_MOMENT_S = 2e-5
_NOTHING = np.zeros(0)


def sweep(flat: Flat, eager: bool, nodes: Floats, messages: Floats, belief: Floats = _NOTHING) -> None:
    """Every node, upwards and then downwards, hands on equal shares, or all if `eager`; `belief` as in `kernels`."""
    if not is_shared(flat):
        sweep_alone(flat, eager, nodes, messages, belief)
        return
    taken, done = np.zeros((2, 2 * len(flat.split)), dtype=np.int64)

    def take() -> None:
        while not sweep_shared(flat, eager, nodes, messages, belief, taken, done):
            time.sleep(_MOMENT_S)  # whoever is halted may go on

    later = other_thread().submit(take)
    try:
        take()
    finally:
        taken[:] = 1  # an interruption leaves nothing behind that still writes
        if not later.cancel() and not done.all():
            later.result()


def is_shared(flat: Flat) -> bool:
    """Whether a sweep takes so long that two processors share it."""
    return FAST and processors() > 1 and entries_read(flat) >= _LEAST


def bound_after(flat: Flat, nodes: Floats) -> float:
    """The sum of what is least at nodes: right after a sweep the least of every edge is 0."""
    return float(np.minimum.reduceat(nodes, flat.start[:-1]).sum(dtype=np.float64))
