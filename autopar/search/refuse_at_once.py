"""Refuse at once: where what every choice holds is more than fits, on every mesh, nothing is searched.

The bytes of every variable over time, of each its least candidate, need neither prices nor a solver. They bound all
plans from below: those that keep everything, and those that recompute.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from autopar.core.graph import OpGraph
from autopar.errors import InvalidConstraint, UnsupportedPrimitive
from autopar.search.constraints.restriction import Restriction
from autopar.search.explain_infeasible import NothingFits
from autopar.search.limited_solve import LimitedSolve
from autopar.search.memory_loop import nothing_fits
from autopar.search.mesh_search import MeshSearch
from autopar.search.mesh_shapes import promise
from autopar.search.recomputable import live_peak_bytes
from autopar.search.recompute import may_recompute
from autopar.search.recompute_solve import recompute_solve, with_twins
from autopar.solve.problem.verifier import TOLERANCE


def refused_at_once(places: Sequence[MeshSearch]) -> NothingFits | None:
    """That nothing fits at any of the places, told of the one where the least is needed; None where anything may.

    Of equals it is told of the one that promises most: smaller peaks are found there. What constraints say is not
    looked at: they only take choices.
    """
    limit = places[0].task.memory_limit_bytes
    if limit is None or _may_be_little(places, limit):
        return None

    least = inf
    told = places[0]
    for place in sorted(places, key=lambda place: promise(place.ground.mesh)):
        needed = _least_bytes(place)
        place.ground.forget()
        if needed <= limit * (1 + TOLERANCE):
            return None
        if needed < least:
            least = needed
            told = place

    rough = told.roughly()
    if rough is None:  # constraints leave nothing, or too little for little work
        return None
    attempt, planned = rough
    return nothing_fits(_with_recomputation(attempt), limit, planned, least)


def _may_be_little(places: Sequence[MeshSearch], limit: int) -> bool:
    """Whether devices can hold inputs and what lives at once of any of the graphs, each its share of everything."""
    graphs = {id(place.task.graph): place.task.graph for place in places}.values()
    room = limit * places[0].ground.mesh.size
    return any(_input_bytes(graph) + live_peak_bytes(graph) <= room for graph in graphs)


def _input_bytes(graph: OpGraph) -> int:
    return sum(tensor.size_bytes for tensor in graph.inputs)


def _least_bytes(place: MeshSearch) -> float:
    """What every choice at a place holds; 0 where the graph has no candidates, which the search tells."""
    everything = LimitedSolve(place.task, place.ground, Restriction({}, ()), ())
    try:
        return _with_recomputation(everything).least_bytes()
    except (InvalidConstraint, UnsupportedPrimitive):
        return 0.0


def _with_recomputation(attempt: LimitedSolve) -> LimitedSolve:
    """The attempt at what may be recomputed too, where anything may."""
    twins = with_twins(attempt.task.graph) if may_recompute(attempt.task) else None
    return attempt if twins is None else recompute_solve(attempt.task, attempt, twins)
