"""Held: what a device holds in the course of a step, by what it is held for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.core.program import Compute, Move, ShardedProgram
from autopar.memory.account import Lives
from autopar.passes.schedule import StepSchedule
from autopar.report.layout import facts_of
from autopar.search.limited_solve import lives_in
from autopar.search.task import Planned

Bytes = NDArray[np.int64]
Ints = NDArray[np.intp]
_POINTS = 500
"""Of a curve, at most: as wide as people see it."""
KINDS = (
    "parameters",
    "optimizer state",
    "data",
    "results",
    "activations",
    "gradients",
    "collectives' buffers",
    "temporaries",
)
_STATE, _OPTIMIZER, _DATA, _RESULTS, _ACTIVATIONS, _GRADIENTS, _COLLECTIVES, _TEMPORARIES = range(
    len(KINDS)
)


@dataclass(frozen=True)
class HeldCurve:
    """The bytes that a device holds: held_bytes[kind][n] from times_s[n] on, kinds in the order of `KINDS`.

    Activations are made in the forward pass and held into the backward pass, gradients are made there and held into the
    update. What collectives make or work on is held for them, unless it is one of these. Results lie in memory of their
    own, but for those that take that of a donated argument.
    """

    kinds: tuple[str, ...]
    times_s: tuple[float, ...]
    held_bytes: tuple[tuple[int, ...], ...]


def held_curve(planned: Planned, step: StepSchedule) -> HeldCurve:
    """What a device holds while it runs `planned`, whose instructions run when `step` says."""
    program = planned.program
    lives = lives_in(planned.graph, program, planned.pricing)
    series = np.zeros((len(KINDS), len(program.instructions)), dtype=np.int64)
    for kind, size in _throughout(planned, lives):
        series[kind] += size

    kinds = _kinds(program, lives)
    for kind in range(len(KINDS)):
        series[kind] += lives.held(kinds == kind)
    moves = np.array([isinstance(one, Move) for one in program.instructions], dtype=np.bool_)
    series[_COLLECTIVES] += np.where(moves, lives.beside, 0)
    series[_TEMPORARIES] += np.where(moves, 0, lives.beside)

    times = _times(program, step)
    kept = _highest(times, series.sum(axis=0))
    shown = [*times[kept].tolist(), step.makespan_s]
    columns = np.concatenate([series[:, kept], series[:, -1:]], axis=1)
    return HeldCurve(KINDS, tuple(shown), tuple(tuple(row) for row in columns.tolist()))


def _throughout(planned: Planned, lives: Lives) -> Iterator[tuple[int, int]]:
    """What is held from beginning to end, by kind."""
    program = planned.program
    graph = planned.graph
    state = {one.name: one.is_parameter for one in facts_of(planned).state}
    for position, value in enumerate(program.inputs):
        is_data = position in graph.batch_inputs
        is_parameter = state.get(graph.inputs[position].name, False)
        kind = _DATA if is_data else _STATE if is_parameter else _OPTIMIZER
        yield kind, int(lives.size[value])

    results = sum(int(lives.size[value]) for value in program.outputs)
    yield _RESULTS, results - lives.taken_bytes


def _kinds(program: ShardedProgram, lives: Lives) -> Ints:
    """Of each of the values that are made, what it is held for."""
    instructions = program.instructions
    phases = np.array([one.op.phase if isinstance(one, Compute) else "" for one in instructions])
    is_move = np.array([isinstance(one, Move) for one in instructions], dtype=np.bool_)
    is_mirror = np.array([_is_mirror(one) for one in instructions], dtype=np.bool_)
    makers = {value: n for n, one in enumerate(instructions) for value in one.outs}
    made = np.array([makers[value] for value in lives.values.tolist()], dtype=np.intp)

    into_backward = _crossed(phases == "backward", lives)
    into_update = _crossed(phases == "update", lives)
    is_activation = (phases[made] == "forward") & into_backward
    is_gradient = ((phases[made] == "backward") | is_mirror[made]) & into_update
    found = np.where(is_move[made], _COLLECTIVES, _TEMPORARIES)
    found = np.where(is_gradient, _GRADIENTS, found)
    return np.where(is_activation, _ACTIVATIONS, found)


def _is_mirror(one: object) -> bool:
    """Whether a move completes gradients."""
    return isinstance(one, Move) and one.role == "mirror"


def _crossed(marked: NDArray[np.bool_], lives: Lives) -> NDArray[np.bool_]:
    """Of each value whether any marked instruction stands behind the one that makes it, while it lives."""
    count = np.concatenate([[0], np.cumsum(marked)])
    return count[lives.stop] > count[np.minimum(lives.start + 1, len(marked))]


def _times(program: ShardedProgram, step: StepSchedule) -> NDArray[np.float64]:
    """When each instruction runs, as computing goes on: what is issued ahead of its place counts there."""
    starts = {id(one.instruction): one.start_s for one in step.events if not one.communicates}
    times = np.array([starts.get(id(one), 0.0) for one in program.instructions])
    return np.maximum.accumulate(times) if len(times) else times


def _highest(times: NDArray[np.float64], total: Bytes) -> Ints:
    """Positions of few points: of each stretch of time the one at which most is held."""
    if len(times) <= _POINTS:
        return np.arange(len(times), dtype=np.intp)
    width = times[-1] / _POINTS or 1.0
    stretch = np.minimum(times // width, _POINTS - 1).astype(np.intp)
    order = np.lexsort((-total, stretch))
    _, first = np.unique(stretch[order], return_index=True)
    return np.sort(order[first])
