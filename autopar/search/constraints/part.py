"""Part: the constraints of a function that hold for a part of it, in which not all is there that they are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.core.graph import OpGraph
from autopar.search.constraints.matching import all_names, matches, matching_operators
from autopar.search.constraints.records import At, Constraint, Named, Target, Tie


def constraints_of_part(
    constraints: Sequence[Constraint], graph: OpGraph
) -> tuple[Constraint, ...]:
    """Those of `constraints` that are about something in `graph`; ties of what is there of what they tie."""
    found = (_of_part(constraint, graph) for constraint in constraints)
    return tuple(constraint for constraint in found if constraint is not None)


def _of_part(constraint: Constraint, graph: OpGraph) -> Constraint | None:
    if isinstance(constraint, Tie):
        there = tuple(target for target in constraint.targets if _is_there(target, graph))
        least = min(2, len(constraint.targets))
        return replace(constraint, targets=there) if len(there) >= least else None
    target = getattr(constraint, "target", None)
    return constraint if target is None or _is_there(target, graph) else None


def _is_there(target: Target, graph: OpGraph) -> bool:
    match target:
        case Named(pattern):
            return bool(matches(pattern, all_names(graph)))
        case At():
            return any(True for _ in matching_operators(target, graph))
        case _:
            return True
