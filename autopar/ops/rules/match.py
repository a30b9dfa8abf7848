"""Match: a parsed rule and an operator in, the operator's FactorRule out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from autopar.core.graph import OpNode, TensorInfo
from autopar.errors import RuleError
from autopar.ops.rules.factor_rule import Dim, Factor, FactorRule
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.notation import NotatedTensor, Notation

Batches = dict[str, dict[int, int]]
"""For each "..." the size of every dim it stands for, counted from the last."""


def match(notation: Notation, op: OpNode) -> FactorRule:
    """The rule of `op`. A factor that only results hold is frozen: the operator itself makes it, whole.

    Raises:
      RuleError: if the operands or results of `op` are not as many, or not of the ranks and sizes, as written.
    """
    in_terms = _fitting(notation, op, "operand")
    out_terms = _fitting(notation, op, "result")
    batches = _batches(notation, op, in_terms + out_terms)
    ins = [_dims(term, tensor, batches) for term, tensor in zip(in_terms, op.ins, strict=True)]
    outs = [_dims(term, tensor, batches) for term, tensor in zip(out_terms, op.outs, strict=True)]
    _check_sizes(notation, op, ins + outs)
    read = _factors(ins)
    made = _factors(outs)
    lost = {f for dims in outs for f in read - _factors([dims]) if f.startswith("...")}

    return FactorRule.of(
        op,
        ins=ins,
        outs=outs,
        sizes=notation.sizes,
        reduced=notation.reduced,
        frozen=notation.frozen | (made - read) | lost,
        linear=linear_sets(op, *notation.linear),
    )


def _factors(tensors: Sequence[Sequence[Dim]]) -> set[Factor]:
    return {factor for dims in tensors for dim in dims for factor in dim}


def _fitting(notation: Notation, op: OpNode, side: str) -> tuple[NotatedTensor, ...]:
    """The terms of one side, one for each tensor; blank text stands for no operand as well as for a scalar."""
    terms, tensors = (notation.ins, op.ins) if side == "operand" else (notation.outs, op.outs)
    if not tensors and terms == (NotatedTensor(),):
        return ()

    if len(terms) != len(tensors):
        raise RuleError(
            f"{_of(notation, op)} has {len(terms)} {side}s, the operator {len(tensors)}: {_shapes(tensors)}"
        )

    for position, (term, tensor) in enumerate(zip(terms, tensors, strict=True)):
        if tensor.ndim != len(term.dims) and (term.batch is None or tensor.ndim < len(term.dims)):
            least = "" if term.batch is None else " or more"
            raise RuleError(
                f"{_of(notation, op)} says that {side} {position} has {len(term.dims)} dims{least}; "
                f"the operator's is {_shapes([tensor])}"
            )

    return terms


def _batches(notation: Notation, op: OpNode, terms: tuple[NotatedTensor, ...]) -> Batches:
    """The largest size among the tensors of every dim that a "..." stands for.

    Raises:
      RuleError: if two sizes differ and neither is 1.
    """
    found: Batches = {}
    for term, tensor in zip(terms, (*op.ins, *op.outs), strict=True):
        if term.batch is None:
            continue
        sizes = tensor.shape[: tensor.ndim - len(term.dims)]
        known = found.setdefault(term.batch, {})
        for dim, size in enumerate(reversed(sizes)):
            if 1 not in (size, known.get(dim, 1)) and size != known.get(dim):
                raise RuleError(
                    f"{_of(notation, op)}: '...' stands for dims of {known[dim]} and of {size} in {_all(op)}"
                )
            known[dim] = max(size, known.get(dim, size))

    return found


def _dims(term: NotatedTensor, tensor: TensorInfo, batches: Batches) -> list[Dim]:
    """The factors of a tensor's dims; a dim of size 1 that is broadcast gets one of its own."""
    if term.batch is None:
        return list(term.dims)
    count = tensor.ndim - len(term.dims)
    sizes = batches[term.batch]
    named = (
        (f"{term.batch}.{count - 1 - d}", tensor.shape[d] == sizes[count - 1 - d])
        for d in range(count)
    )
    return [
        *(((name if whole else f"{name} of {tensor.id}"),) for name, whole in named),
        *term.dims,
    ]


def _check_sizes(notation: Notation, op: OpNode, dims: list[list[Dim]]) -> None:
    """Every factor has one size, and those of a bracket make its dim."""
    places = [
        *(f"operand {n}" for n in range(len(op.ins))),
        *(f"result {n}" for n in range(len(op.outs))),
    ]
    rows = [
        (place, size, dim)
        for place, tensor, factors in zip(places, (*op.ins, *op.outs), dims, strict=True)
        for size, dim in zip(tensor.shape, factors, strict=True)
    ]
    known = {factor: (size, "sizes") for factor, size in notation.sizes.items()}
    for place, size, dim in rows:
        if len(dim) == 1:
            first, where = known.setdefault(dim[0], (size, place))
            if first != size:
                raise RuleError(
                    f"{_of(notation, op)}: {dim[0]!r} is {first} in {where} and {size} in {place}: {_all(op)}"
                )

    for place, size, dim in rows:
        made = prod(known[factor][0] for factor in dim)
        if made != size:
            raise RuleError(
                f"{_of(notation, op)}: '({' '.join(dim)})' makes {made}, {place} has {size} there: {_all(op)}"
            )


def _all(op: OpNode) -> str:
    return f"{_shapes(op.ins)} -> {_shapes(op.outs)}"


def _of(notation: Notation, op: OpNode) -> str:
    return f"the rule {notation.text!r} of {op.kind!r} ({op.source or 'unknown line'})"


def _shapes(tensors: Collection[TensorInfo]) -> str:
    return ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors) or "none"
