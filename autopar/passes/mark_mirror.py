"""mark_mirror: which reductions synchronise the gradient of a parameter."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.core.graph import OpGraph
from autopar.core.memo import once_per_graph
from autopar.core.regions import LEAVING
from autopar.passes.program import Instruction, Move, ShardedProgram
from autopar.price.work import is_view


@dataclass(frozen=True)
class MarkMirror:
    """Gives the role "mirror" to the reduction of each parameter's gradient.

    A gradient is a tensor of the shape of some input (data left out) that the backward pass or the update makes, and
    that the update or the caller reads, or what becomes one by views and by leaving loops alone: the reduction of one
    is what keeps replicas of the parameter equal.
    """

    graph: OpGraph
    name: str = "mark_mirror"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with the roles of gradient reductions set."""
        gradients = _gradients(self.graph)

        def mark(move: Move) -> Instruction:
            if move.role not in ("forward", "backward"):
                return move
            tensors = [program.values[v].tensor.id for v in move.ins]
            return move._replace(role="mirror") if gradients.issuperset(tensors) else move

        return program.with_instructions(tuple([mark(i) if isinstance(i, Move) else i for i in program.instructions]))


@once_per_graph
def _gradients(graph: OpGraph) -> frozenset[int]:
    """The ids of the tensors that are gradients."""
    data = set(graph.batch_inputs)
    shapes = {t.shape for n, t in enumerate(graph.inputs) if n not in data}
    behind = [op for op in graph.ops if op.phase != "forward"]
    read = {t.id for op in behind if op.phase == "update" for t in op.ins} | {t.id for t in graph.outputs}
    found = {t.id for op in behind for t in op.outs if t.id in read and t.shape in shapes}
    for op in reversed(behind):
        if op.outs and op.outs[0].id in found and (is_view(op) or op.kind in LEAVING):
            found.update(tensor.id for tensor in op.ins)
    return frozenset(found)
