"""Operators that work element by element: what is behind the true elements stays there, whatever it is."""

from __future__ import annotations

from math import isfinite

from autopar.core.graph import TensorInfo
from autopar.trace.draft import DraftOp
from autopar.trace.padding.padder import Form, Padder, Shape

_ANY = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt
    ceil clamp clz complex conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc
    exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p
    log2 logistic lt lt_to max min mul mulhi name ne neg nextafter not one_minus_square or polygamma polynomial
    population_count pow real reduce_precision regularized_incomplete_beta rem round rsqrt select_n shift_left
    shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh threefry2x32
    xor zeta
"""
_ZERO_OF_ZEROS = frozenset({
    *("abs", "add", "add_any", "and", "bitcast_convert_type", "conj", "convert_element_type", "copy", "imag", "max"),
    *("min", "mul", "neg", "or", "real", "select_n", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub"),
    *("tan", "tanh", "xor"),
})  # fmt: skip
"""Kinds that give zero where all operands are zero."""


def _elementwise(padder: Padder, op: DraftOp) -> bool:
    """out[d...] = f(x[d...], ...); whole where state takes part, which lies split along another dim."""
    shape = op.outs[0].shape
    arrays = [tensor for tensor in op.ins if tensor.ndim]
    if (
        any(not _fits(t.shape, shape) for t in arrays)
        or any(t.shape != shape for t in op.outs)
        or not arrays
    ):
        return False

    if any(tensor.id in padder.resting for tensor in arrays):
        padder.resting.update(tensor.id for tensor in op.outs)
        return False

    target: Shape = tuple(map(max, *(padder.grown(t) for t in arrays), shape))
    if target == shape:
        return False

    ins = [padder.need(t, _stretched(t.shape, shape, target), op) for t in op.ins]
    padder.put(op, ins, [target] * len(op.outs), [_zero(op, ins)] * len(op.outs))
    padder.grant(op)
    return True


def _fits(one: Shape, shape: Shape) -> bool:
    """Whether an operand has the dims of the result, but for some of one element, which are stretched."""
    return len(one) == len(shape) and all(
        n in (1, size) for n, size in zip(one, shape, strict=True)
    )


def _stretched(one: Shape, shape: Shape, target: Shape) -> Shape:
    """The shape in which an operand is needed for a result that is padded from `shape` to `target`."""
    return (
        tuple(new if n == size else n for n, size, new in zip(one, shape, target, strict=True))
        if one
        else ()
    )


def _zero(op: DraftOp, ins: list[Form]) -> frozenset[int]:
    """The dims in which the results are zero behind the true elements."""
    if op.kind not in _ZERO_OF_ZEROS:
        return frozenset()
    cases = list(zip(op.ins, ins, strict=True))[1 if op.kind == "select_n" else 0 :]
    arrays = [form.zero for tensor, form in cases if tensor.ndim]
    others = [tensor for tensor, _ in cases if tensor.shape != op.outs[0].shape]
    if not arrays or not all(_keeps_zero(op.kind, tensor) for tensor in others):
        return frozenset()
    return frozenset(d for d in arrays[0] if all(d in zero for zero in arrays))


def _keeps_zero(kind: str, scalar: TensorInfo) -> bool:
    value = scalar.literal
    if value is None:
        return False
    return value == 0 or (kind == "mul" and not isinstance(value, complex) and isfinite(value))


def _several(padder: Padder, op: DraftOp) -> bool:
    """outs[n] = ins[n]."""
    if len(op.ins) != len(op.outs) or any(t.literal is not None for t in op.ins):
        return False
    shapes = [padder.grown(tensor) for tensor in op.ins]
    if shapes == [tensor.shape for tensor in op.ins]:
        return False
    ins = [padder.need(tensor, shape, op) for tensor, shape in zip(op.ins, shapes, strict=True)]
    padder.put(op, ins, shapes, [form.zero for form in ins])
    return True


HANDLERS = {**dict.fromkeys(_ANY.split(), _elementwise), "optimization_barrier": _several}
