"""Dims: what the dims of values are, followed from the inputs by the rules of the operators.

A label stands for an index of the user's: the batch, the sequence. It passes from operands to results wherever a rule
says that two dims are the same index, through reshapes too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autopar.core.graph import OpGraph, OpNode
from autopar.core.memo import once_per_graph
from autopar.ops.rules.factor_rule import Dim, FactorRule
from autopar.ops.traits import is_rearrangement
from autopar.search.resolve import FindRule, resolve

Label = str
"""An index of the user's: "batch", "sequence"; "" is nothing known."""
DimLabels = tuple[Label, ...]
"""Of one dim: what it is made of, major to minor; a dim that is nothing known has one empty label."""
Labels = tuple[DimLabels, ...]
_AGAIN = frozenset({"carry_in", "convert_element_type", "copy", "copy_p", "name", "scan_slice"})
"""Operators whose result is their operand, or a slice of it: in another type or under another name."""
_PARTS = frozenset({"dynamic_slice", "pad", "slice"})
"""Operators whose dims are those of the operand, shorter or longer: by their rules they are other indices."""


def rules_of(graph: OpGraph, find: FindRule) -> Iterator[tuple[OpNode, FactorRule]]:
    """Every operator with its rule; of operators that are alike it is made once."""
    known: dict[int, FactorRule] = {}
    for op, first in zip(graph.ops, graph.alike, strict=True):
        if first not in known:
            known[first] = resolve(op, find)
        yield op, known[first]


def data_labels(graph: OpGraph) -> dict[int, Labels]:
    """The labels of the inputs that are data, by tensor id: rows first, then places of a sequence.

    The last dim of real numbers is what a row or a place holds, and has no label.
    """
    found: dict[int, Labels] = {}
    for position in graph.batch_inputs:
        tensor = graph.inputs[position]
        places = tensor.ndim if tensor.dtype.startswith(("int", "uint")) else tensor.ndim - 1
        found[tensor.id] = tuple(
            ("batch",) if dim == 0 else ("sequence" if dim < places else "",)
            for dim in range(tensor.ndim)
        )
    return found


@once_per_graph
def labels_of_data(graph: OpGraph, find: FindRule) -> Mapping[int, Labels]:
    """The labels of all values that have any, by tensor id, from those of the data."""
    return follow_labels(graph, find, data_labels(graph))


def follow_labels(graph: OpGraph, find: FindRule, seeds: Mapping[int, Labels]) -> dict[int, Labels]:
    """The labels of all values that have any, by tensor id, from those of the `seeds`."""
    found = dict(seeds)
    for op, rule in rules_of(graph, find):
        if not any(tensor.id in found for tensor in op.ins):
            continue

        of_factor = _factor_labels(op, rule, found)
        for tensor, dims in zip(op.outs, rule.outs, strict=True):
            labels = tuple(_of_dim(_large(dim, rule), of_factor) for dim in dims)
            if op.kind in _PARTS:
                labels = _filled(labels, found.get(op.ins[0].id, labels))
            if any(label for dim in labels for label in dim):
                found[tensor.id] = labels

    return found


def _factor_labels(
    op: OpNode, rule: FactorRule, found: Mapping[int, Labels]
) -> dict[str, DimLabels]:
    """The labels of a rule's factors: the first that an operand gives. One factor may be several indices in one dim."""
    of_factor: dict[str, DimLabels] = {}
    for tensor, dims in zip(op.ins, rule.ins, strict=True):
        for dim, labels in zip(dims, found.get(tensor.id, ()), strict=False):
            factors = _large(dim, rule)
            parts = [labels] if len(factors) == 1 else [(label,) for label in labels]
            for factor, part in zip(factors, parts, strict=False):
                if any(part):
                    of_factor.setdefault(factor, part)
    return of_factor


def _of_dim(dim: Dim, of_factor: Mapping[str, DimLabels]) -> DimLabels:
    """The labels of a dim made of these factors."""
    found = tuple(label for factor in dim for label in of_factor.get(factor, ("",)))
    return found or ("",)


def _filled(labels: Labels, operand: Labels) -> Labels:
    """`labels` of a result, with the operand's for the dims of which it has a part, or more."""
    return tuple(own if any(own) else other for own, other in zip(labels, operand, strict=True))


def _large(dim: Dim, rule: FactorRule) -> Dim:
    """The factors of a dim that have several places; all, where none has."""
    return tuple(factor for factor in dim if rule.sizes[factor] != 1) or dim


@once_per_graph
def origins(graph: OpGraph) -> Mapping[int, int]:
    """The position of the input that a value is: as it is, or in another type, shape or order of dims.

    By tensor id. What loops slice off an input, or carry in, is it too.
    """
    found = {tensor.id: position for position, tensor in enumerate(graph.inputs)}
    for op in graph.ops:
        source = found.get(op.ins[0].id) if op.ins else None
        if source is not None and is_again(op):
            found[op.outs[0].id] = source
    return found


def is_again(op: OpNode) -> bool:
    """Whether an operator's first result is its first operand: in another type, shape, or order of dims."""
    return op.kind in _AGAIN or (len(op.ins) == 1 and is_rearrangement(op))
