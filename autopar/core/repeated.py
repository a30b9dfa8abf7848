"""Repeated: derivatives of functions kept as operators, which compute anew what their functions computed.

A compiler that sees both computes it once, and keeps it in between. In a rematerialised block, where both stand, that
is for the better. Where the function stands in the forward pass it is what the derivative is to spare: it is kept from
that (`emit.barriers`), so that memory is what is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autopar.core.graph import OpGraph, OpNode
from autopar.core.memo import once_per_graph

DERIVATION = "derivation"
"""The parameter of an operator that says how it was derived: steps, the first one first. See `ops.rules.derived`."""

JVP = ".jvp"
VJP = ".vjp"
"""What the names of the derivatives of an operator end in."""


def repeated(ops: Sequence[OpNode]) -> Mapping[int, OpNode]:
    """By derivative the function whose work it repeats: on the same operands, in the same region."""
    functions = {
        (op.kind, op.region, *(tensor.id for tensor in op.ins)): op
        for op in ops
        if op.body is not None
    }

    found: dict[int, OpNode] = {}
    for op in ops:
        if op.body is None or not op.kind.endswith(VJP):
            continue
        _, _, results, _ = op.params[DERIVATION][-1]
        own = [tensor.id for tensor in op.ins[: len(op.ins) - len(results)]]
        function = functions.get((op.kind.removesuffix(VJP), op.region, *own))
        if function is not None:
            found[op.id] = function
    return found


@once_per_graph
def merged(graph: OpGraph) -> frozenset[int]:
    """The ids of derivatives that stand beside their functions, in one pass: the compiler computes those once."""
    return frozenset(n for n, one in repeated(graph.ops).items() if one.phase == graph.ops[n].phase)
