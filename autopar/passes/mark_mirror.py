"""mark_mirror: which reductions synchronise the gradient of a parameter."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.core.graph import OpGraph
from autopar.core.program import Instruction, Move, ShardedProgram
from autopar.cost.buckets import gradients


@dataclass(frozen=True)
class MarkMirror:
    """Gives the role "mirror" to the reduction of each parameter's gradient.

    The reduction of what `cost.buckets.gradients` names is what keeps replicas of the parameter equal.
    """

    graph: OpGraph
    name: str = "mark_mirror"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with the roles of gradient reductions set."""
        found = gradients(self.graph)

        def mark(move: Move) -> Instruction:
            if move.role not in ("forward", "backward"):
                return move
            tensors = [program.values[v].tensor.id for v in move.ins]
            return move._replace(role="mirror") if found.issuperset(tensors) else move

        return program.with_instructions(
            tuple([mark(i) if isinstance(i, Move) else i for i in program.instructions])
        )
