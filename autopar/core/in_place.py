"""In place: operators whose result a compiler writes over their first operand, where nobody reads that later."""

from __future__ import annotations

from collections.abc import Mapping

from autopar.core.dataflow import until, uses_of
from autopar.core.graph import OpGraph, OpNode
from autopar.core.memo import once_per_graph

_OVER_FIRST = ("scatter", "dynamic_update_slice", "scan_last")


def writes_over_first(op: OpNode) -> bool:
    """Whether `op` changes some elements of its first operand and leaves the others as they are."""
    return op.kind.startswith(_OVER_FIRST)


@once_per_graph
def updates(graph: OpGraph) -> frozenset[int]:
    """The operators, by id, that write over their first operand: nobody reads that later, and no caller keeps it."""
    uses = uses_of(graph)
    kept = {tensor.id for n, tensor in enumerate(graph.inputs) if n not in graph.donated}

    def is_last(op: OpNode) -> bool:
        first = op.ins[0]
        made_in = graph.made_in(first)
        return (
            first.id not in kept
            and max(until(graph, made_in, use) for use in uses[first.id]) <= op.id
        )

    over = [op for op in graph.ops if writes_over_first(op) and op.ins[0].literal is None]
    return frozenset(op.id for op in over if is_last(op))


@once_per_graph
def updated_carries(graph: OpGraph) -> frozenset[int]:
    """The ids of the carries that may stay where they are all rounds: each next value may be written over the last.

    Whether the last is read later is not looked at.
    """
    over = _written_over(graph)
    pairs = [
        (graph.ops[entering].outs[0].id, graph.ops[leaving])
        for leaving, entering in graph.loop_carries.items()
    ]
    return frozenset(
        carry for carry, leaving in pairs if over[leaving.outs[0].id] == leaving.ins[0].id
    )


@once_per_graph
def in_arguments(graph: OpGraph) -> frozenset[int]:
    """The ids of tensors that may lie in the memory of a donated argument, up to a result that takes that.

    What a result is written over, and what that is, back to the argument; later readers are not looked at.
    """
    donated = {graph.inputs[n].id: graph.inputs[n] for n in graph.donated}
    found: set[int] = set()
    for tensor in graph.outputs:
        chain = chain_of(_written_over(graph), tensor.id)
        argument = donated.get(chain[-1])
        if argument is not None and (argument.shape, argument.dtype) == (
            tensor.shape,
            tensor.dtype,
        ):
            found.update(chain[1:-1])
    return frozenset(found)


@once_per_graph
def _written_over(graph: OpGraph) -> dict[int, int]:
    """What each tensor may be written over: what leaves a loop over the last round's, if that may stay in the carry."""
    found: dict[int, int] = {}
    for op in graph.ops:
        entering = graph.loop_carries.get(op.id)
        if entering is not None:
            carry = graph.ops[entering].outs[0].id
            last = op.ins[0].id
            found[op.outs[0].id] = last if carry in chain_of(found, last) else carry
        elif (writes_over_first(op) or op.kind == "carry_in") and op.ins[0].literal is None:
            found[op.outs[0].id] = op.ins[0].id
    return found


def chain_of(over: Mapping[int, int], last: int) -> list[int]:
    """`last`, what it is written `over`, what that is written over, and so forth."""
    chain = [last]
    while chain[-1] in over:
        chain.append(over[chain[-1]])
    return chain
