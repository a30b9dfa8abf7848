"""The user's own rules: the public way into the registry."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import cast

from autopar.core.graph import OpNode
from autopar.errors import RuleError
from autopar.ops.rules.factor_rule import Factor, FactorRule
from autopar.ops.rules.match import match
from autopar.ops.rules.notation import Notation, Reduced, parse
from autopar.ops.rules.registry import Rule, register
from autopar.ops.rules.stated import SHAPED

RuleLike = str | Notation | Rule


def register_rule(
    name: str,
    rule: RuleLike,
    *,
    reduced: Reduced = (),
    frozen: Factor | Collection[Factor] = (),
    linear: Iterable[int | Collection[int]] = (),
    replace: bool = False,
    **sizes: int,
) -> None:
    """From now on plans split the primitive `name` as `rule` says.

        autopar.register_rule("my_product", "b m k, b k n -> b m n", reduced="k", linear=(0, 1))

    The text is in the notation of JAX's own sharding rules: names are factors (indices), spaces stand between dims,
    commas between tensors, `(a b)` is a dim of two factors, a leading `...` any number of dims. What stands in
    operands and results may be split, and the primitive is then run on the slices: its parameters must not name the
    sizes of dims that are split. A factor that only results hold is never split.

    Args:
      name: the primitive's name, as it stands in a jaxpr.
      rule: text as above, or a function from an `OpNode` to its `FactorRule`.
      reduced: factors that results lack: where one is split, the parts of the results are added ("k"), or combined as
        said ({"k": "sum"}, "max" or "min").
      frozen: factors that are never split.
      linear: operands in which the primitive is linear, so that parts of a sum may pass through it: `(0, 1)` in
        each of the first two, `[(0, 1)]` in both together.
      replace: put this rule in the place of one that is there already.
      **sizes: the sizes of factors that stand in brackets only, by name.

    Raises:
      RuleError: if the text is not well formed or does not fit the options, `name` has a rule and not `replace`, or it
        is a kernel or the like, whose parameters fix all shapes.
        A rule that does not fit an operator raises when that operator is planned, and names its source line.
    """
    if name in SHAPED:
        raise RuleError(
            f"{name!r} has all shapes fixed in it and cannot be run on slices. Make the function that calls it an "
            f"operator, which is traced anew on each device's slices: @autopar.operator({rule!r})."
        )
    register(
        name, as_rule(rule, reduced=reduced, frozen=frozen, linear=linear, **sizes), replace=replace
    )


def as_rule(
    rule: RuleLike,
    *,
    reduced: Reduced = (),
    frozen: Factor | Collection[Factor] = (),
    linear: Iterable[int | Collection[int]] = (),
    **sizes: int,
) -> Rule:
    """`rule` as a function; see `register_rule`.

    Raises:
      RuleError: if the text is not well formed, or options are given to a function.
    """
    options = {"reduced": reduced, "frozen": frozen, "linear": linear, **sizes}
    if isinstance(rule, str):
        rule = parse(rule, reduced=reduced, frozen=frozen, linear=linear, sizes=sizes)
    elif any(options.values()):
        given = ", ".join(option for option, value in options.items() if value)
        raise RuleError(
            f"{given} goes with a rule that is text; a function states it in its FactorRule"
        )
    return partial(match, rule) if isinstance(rule, Notation) else rule


def whole_along(*axes: str | int) -> Callable[[OpNode], FactorRule]:
    """The rule "split everywhere but along these axes", for operators that work along an axis: softmax, a norm, a sort.

        out[d..., k...] = f(x[d..., k...], others[broadcast...])          k, the dims named by `axes`, are whole

    Every operand is broadcast against the first result, as numpy does; the dims that `axes` names are whole in all of
    them, the others pass. All results have the shape of the first.

    Args:
      *axes: dims, counted from the end if negative, or names of the operator's static arguments that hold one or a
        tuple of them; None means all.

    Raises (the rule, not this function):
      RuleError: if an operand cannot be broadcast against the result, or an axis is not one of its dims.
    """
    return partial(_whole_along, axes)


def _whole_along(axes: tuple[str | int, ...], op: OpNode) -> FactorRule:
    shape = op.outs[0].shape
    whole = {dim for axis in axes for dim in _dims(op, axis, len(shape))}
    factors = [f"d{dim}" for dim in range(len(shape))]
    ins: list[list[Factor]] = []
    frozen = {factors[dim] for dim in whole}
    for operand, tensor in enumerate(op.ins):
        first = len(shape) - tensor.ndim
        if first < 0 or any(
            size not in (1, full) for size, full in zip(tensor.shape, shape[first:], strict=True)
        ):
            raise RuleError(
                f"operand {operand} of {op.kind!r} ({op.source or 'unknown line'}) has shape {tensor.shape}, which "
                f"cannot be broadcast to that of the result, {shape}: give the operator another rule"
            )
        names = [
            factors[first + d] if s == shape[first + d] else f"i{operand}.{d}"
            for d, s in enumerate(tensor.shape)
        ]
        frozen |= {name for name in names if name[0] == "i"}
        ins.append(names)

    held = {name for names in ins for name in names}
    return FactorRule.of(
        op, ins=ins, outs=[factors] * len(op.outs), frozen=frozen | (set(factors) - held)
    )


def _dims(op: OpNode, axis: str | int, ndim: int) -> tuple[int, ...]:
    """The dims that one of `axes` names."""
    value = op.params.get(axis, "no such argument") if isinstance(axis, str) else axis
    dims = (
        range(ndim)
        if value is None
        else cast("tuple[object, ...]", value if isinstance(value, tuple) else (value,))
    )
    found = tuple(dim % ndim for dim in dims if isinstance(dim, int) and -ndim <= dim < ndim)
    if len(found) != len(dims):
        where = op.source or "unknown line"
        raise RuleError(
            f"{axis!r} of {op.kind!r} ({where}) is {value!r}: not a dim of a result with {ndim}"
        )

    return found
