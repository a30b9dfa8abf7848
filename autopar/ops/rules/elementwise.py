"""Rules of operators that work element by element: every dim of the result is that dim of every operand."""

from __future__ import annotations

from autopar.core.graph import OpNode
from autopar.core.placement import Kind
from autopar.ops.rules.factor_rule import Factor, FactorRule
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import rule_for
from autopar.ops.traits import declare

_FLOAT_BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}
_WIDER_BUT_LOSSY = {("float16", "bfloat16"), ("bfloat16", "float16")}

# The operands in which the operator is linear, each set jointly.
_LINEAR: dict[str, tuple[tuple[int, ...], ...]] = {
    "add": ((0, 1),),
    "add_any": ((0, 1),),
    "complex": ((0, 1),),
    "conj": ((0,),),
    "copy": ((0,),),
    "imag": ((0,),),
    "mul": ((0,), (1,)),
    "name": ((0,),),
    "neg": ((0,),),
    "real": ((0,),),
    "stop_gradient": ((0,),),
    "sub": ((0, 1),),
}


def aligned(op: OpNode) -> tuple[list[list[Factor]], list[list[Factor]]]:
    """The factors of operands and results: dim i of each is factor "di"; scalars and dims of size 1 are stretched."""
    shape = op.outs[0].shape
    ins = [
        [f"d{i}" if size == shape[i] else f"one{n}.{i}" for i, size in enumerate(tensor.shape)]
        for n, tensor in enumerate(op.ins)
    ]
    return ins, [[f"d{i}" for i in range(tensor.ndim)] for tensor in op.outs]


_ALIGNED = """
    abs acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz cos cosh digamma eq
    eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac integer_pow is_finite le
    le_to lgamma log log1p log2 logistic lt lt_to mulhi ne nextafter not one_minus_square philox2x32 philox4x32
    platform_index polygamma polynomial population_count pow reduce_precision regularized_incomplete_beta rem
    round rsqrt shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square tan tanh
    threefry2x32 threefry4x32 xor zeta
"""


@rule_for(*_ALIGNED.split())
def elementwise(op: OpNode) -> FactorRule:
    """out[d...] = f(x[d...], y[d...], ...)."""
    ins, outs = aligned(op)
    return FactorRule.of(op, ins=ins, outs=outs)


@rule_for(*_LINEAR)
def linear_elementwise(op: OpNode) -> FactorRule:
    """out[d...] = f(x[d...], y[d...]); linear in x, or jointly in x and y (sums), or in each of them (products)."""
    ins, outs = aligned(op)
    return FactorRule.of(op, ins=ins, outs=outs, linear=linear_sets(op, *_LINEAR[op.kind]))


@rule_for("div")
def div(op: OpNode) -> FactorRule:
    """out[d...] = x[d...] / y[d...]; linear in x by a number but 0, except for integers, which are truncated.

    What is divided may be 0: of parts that are divided by it some are inf and others -inf, and no sum of these is.
    """
    ins, outs = aligned(op)
    exact = op.outs[0].dtype in _FLOAT_BITS or op.outs[0].dtype.startswith("complex")
    is_linear = exact and bool(op.ins[1].literal)
    return FactorRule.of(op, ins=ins, outs=outs, linear=linear_sets(op, (0,)) if is_linear else ())


@rule_for("max", "min")
def extremum(op: OpNode) -> FactorRule:
    """out[d...] = max(x[d...], y[d...]); of maxima still to be taken, the larger one is still to be taken."""
    kind: Kind = "max" if op.kind == "max" else "min"
    return _passing(op, kind)


@rule_for("or", "and")
def logical(op: OpNode) -> FactorRule:
    """out[d...] = x[d...] or y[d...]; of booleans these are max and min, of integers bit by bit."""
    if op.outs[0].dtype == "bool":
        return _passing(op, "max" if op.kind == "or" else "min")
    return elementwise(op)


def _passing(op: OpNode, kind: Kind) -> FactorRule:
    """The rule of an operator that is its own reduction: an operand that is a literal stands on every device."""
    ins, outs = aligned(op)
    carried = [i for i, tensor in enumerate(op.ins) if tensor.literal is None]
    return FactorRule.of(op, ins=ins, outs=outs, reduced={kind: kind}, carried={kind: carried})


@rule_for("select_n")
def select_n(op: OpNode) -> FactorRule:
    """out[d...] = cases[which[d...]][d...]; linear jointly in the cases, `which` a scalar or of their shape."""
    ins, outs = aligned(op)
    return FactorRule.of(
        op, ins=ins, outs=outs, linear=linear_sets(op, tuple(range(1, len(op.ins))))
    )


@rule_for("convert_element_type")
def convert_element_type(op: OpNode) -> FactorRule:
    """out[d...] = x[d...] in another type; linear where the new type holds every value of the old one."""
    ins, outs = aligned(op)
    before = op.ins[0].dtype
    after = op.outs[0].dtype
    widens = (
        _FLOAT_BITS.get(before, 65) <= _FLOAT_BITS.get(after, 0)
        and (before, after) not in _WIDER_BUT_LOSSY
    )
    exact = before == after or widens or op.ins[0].literal is not None
    return FactorRule.of(op, ins=ins, outs=outs, linear=linear_sets(op, (0,)) if exact else ())


@rule_for("bitcast_convert_type")
def bitcast_convert_type(op: OpNode) -> FactorRule:
    """out[d...] = the bits of x[d...]; a narrower type has one more dim than a wider one, which is never split."""
    before = op.ins[0].ndim
    after = op.outs[0].ndim
    dims = [f"d{i}" for i in range(max(before, after))]
    frozen = dims[min(before, after) :]
    return FactorRule.of(op, ins=[dims[:before]], outs=[dims[:after]], frozen=frozen)


@rule_for("optimization_barrier", "device_put")
def identity(op: OpNode) -> FactorRule:
    """outs[n] = ins[n]. What one axis splits it splits in all: a dim that not every tensor has is frozen."""
    dims = [[f"d{i}:{size}" for i, size in enumerate(tensor.shape)] for tensor in op.ins]
    frozen = {f for factors in dims for f in factors if not all(f in other for other in dims)}
    linear = linear_sets(op, tuple(range(len(op.ins))))
    return FactorRule.of(op, ins=dims, outs=dims, frozen=frozen, linear=linear)


_CHEAP = """
    abs acos acosh add add_any and asin asinh atan atanh bitcast_convert_type ceil clamp clz complex conj
    convert_element_type copy cosh floor ge gt imag is_finite le lt max min mul mulhi neg nextafter not
    one_minus_square or population_count real reduce_precision round select_n shift_left shift_right_arithmetic
    shift_right_logical sign sinh square stop_gradient sub threefry2x32 xor
"""
_COSTLY = """
    atan2 cbrt cos digamma div erf erf_inv erfc exp exp2 expm1 lgamma log log1p log2 logistic pow rem rsqrt sin sqrt
    tan tanh
"""

declare(*_CHEAP.split(), *_COSTLY.split(), "integer_pow", is_recomputable=True)
declare(*_COSTLY.split(), "integer_pow", is_costly=True)
declare(*_COSTLY.split(), is_dear=True)  # whole powers are products
declare("div", "mul", "neg", is_scaling=True)
declare("copy", "optimization_barrier", "stop_gradient", is_view=True)
declare("copy", rearranges="moves")
declare("reduce_precision", "threefry2x32", is_fusible=False)
declare("reduce_precision", reads_fused=True)
