"""mark_mirror: which reductions synchronise the gradient of a parameter."""

from __future__ import annotations

from dataclasses import dataclass, replace

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

        def mark(instruction: Instruction) -> Instruction:
            if not isinstance(instruction, Move) or instruction.role not in ("forward", "backward"):
                return instruction
            tensors = [program.values[v].tensor.id for v in instruction.ins]
            return replace(instruction, role="mirror") if gradients.issuperset(tensors) else instruction

        return program.with_instructions(tuple(mark(i) for i in program.instructions))


@once_per_graph
def _gradients(graph: OpGraph) -> frozenset[int]:
    """The ids of the tensors that are gradients."""
    data = set(graph.batch_inputs)
    shapes = {t.shape for n, t in enumerate(graph.inputs) if n not in data}
    made = {t.id: op.phase for op in graph.ops for t in op.outs if t.shape in shapes and op.phase != "forward"}
    read = {t.id for op in graph.ops if op.phase == "update" for t in op.ins} | {t.id for t in graph.outputs}
    found = {tensor for tensor in made if tensor in read}
    for op in reversed(graph.ops):
        passes = is_view(op) or op.kind in LEAVING
        if passes and op.phase != "forward" and op.outs[0].id in found:
            found.update(tensor.id for tensor in op.ins)
    return frozenset(found)
