"""Derived: from the rule of an operator, those of what JAX's transformations make of it.

`jax.vmap` gives it one more index; `jax.jvp` its tangents, which have the factors of what they belong to; `jax.vjp`
its gradients. All follow from the operator's own rule, so who writes that one has written them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from autopar.core.graph import OpNode, TensorInfo
from autopar.core.repeated import DERIVATION as DERIVATION
from autopar.core.repeated import JVP as JVP
from autopar.core.repeated import VJP as VJP
from autopar.errors import RuleError
from autopar.ops.rules.factor_rule import FactorRule, TensorFactors
from autopar.ops.rules.linearity import linear_sets
from autopar.ops.rules.registry import Rule

Outs = Sequence[tuple[tuple[int, ...], str]]
"""The shape and element type of all results of an operator that was differentiated."""


def derived(rule: Rule) -> Rule:
    """The rule of an operator and of all that JAX's transformations derive from it, given that of the operator itself.

    The parameter `derivation` of an operator is a tuple of steps:
      ("vmap", held): a leading dim more in all results, and in the operands where `held` is True;
      ("jvp", moving, results, outs): operands x..., dx[moving]... -> the tangents of y[results];
      ("vjp", moving, results, outs): operands x..., dy[results]... -> the gradients of x[moving].
    `moving` and `results` are positions of operands and results, `outs` the shape and dtype of all results.
    """
    return partial(_derived, rule)


def _derived(rule: Rule, op: OpNode) -> FactorRule:
    steps: tuple[tuple[Any, ...], ...] = op.params.get(DERIVATION, ())
    if not steps:
        return rule(op)
    *before, step = steps
    params = {name: value for name, value in op.params.items() if name != DERIVATION}
    inner = replace(op, params={**params, DERIVATION: tuple(before)} if before else params)
    return _STEPS[step[0]](partial(_derived, rule), inner, op, *step[1:])


def _vmap(rule: Rule, inner: OpNode, op: OpNode, held: Sequence[bool]) -> FactorRule:
    """One factor more: the first of all results, and of the operands that are mapped over."""
    ins = tuple(_without_first(t) if mapped else t for t, mapped in zip(op.ins, held, strict=True))
    found = rule(replace(inner, ins=ins, outs=tuple(map(_without_first, op.outs))))
    factor = f"vmap{len(op.params[DERIVATION])}"

    def mapped_over(base: FactorRule) -> FactorRule:
        return replace(
            base,
            ins=tuple(
                ((factor,), *dims) if mapped else dims
                for dims, mapped in zip(base.ins, held, strict=True)
            ),
            outs=tuple(((factor,), *dims) for dims in base.outs),
            sizes={factor: op.outs[0].shape[0], **base.sizes},
        )

    return _in_all_ways(found, mapped_over)


def _jvp(
    rule: Rule, inner: OpNode, op: OpNode, moving: Sequence[int], results: Sequence[int], outs: Outs
) -> FactorRule:
    """Tangents have the factors of what they belong to; linear in them.

    What is reduced by maximum or carried is frozen.
    """

    def tangents(base: FactorRule) -> FactorRule:
        return _derivative(op, base, [base.ins[i] for i in moving], [base.outs[i] for i in results])

    return _in_all_ways(_base(rule, inner, op, len(moving), outs), tangents)


def _vjp(
    rule: Rule, inner: OpNode, op: OpNode, moving: Sequence[int], results: Sequence[int], outs: Outs
) -> FactorRule:
    """Gradients have the factors of what they belong to; a factor that an operand lacks is summed in its gradient.

    With y[f] = F(x[f], w) the gradient of w is the sum over f of each part's; with y = sum over f of F(x[f], w) the
    gradient of y is the same for all parts. Linear in the gradients of the results.
    """

    def gradients(base: FactorRule) -> FactorRule:
        return _derivative(op, base, [base.outs[i] for i in results], [base.ins[i] for i in moving])

    return _in_all_ways(_base(rule, inner, op, len(results), outs), gradients)


def _in_all_ways(rule: FactorRule, derive: Callable[[FactorRule], FactorRule]) -> FactorRule:
    """What is derived of `rule`, and of each other way to split what it is the rule of.

    What an operator exchanges inside its derivatives is not known from what it exchanges itself.
    """
    return replace(derive(rule), ways=tuple(derive(way) for way in rule.ways if not way.exchanged))


def _base(rule: Rule, inner: OpNode, op: OpNode, given: int, outs: Outs) -> FactorRule:
    """The rule of what was differentiated: its operands are those of `op` but the last `given`, its results `outs`."""
    return rule(replace(inner, ins=op.ins[: len(op.ins) - given], outs=_tensors(op, outs)))


def _derivative(
    op: OpNode, base: FactorRule, given: Sequence[TensorFactors], outs: Sequence[TensorFactors]
) -> FactorRule:
    """The rule of a derivative: what is `given` comes after the operands of `base`, and it is linear in that."""
    ins = (*base.ins, *given)
    if base.offsets:
        raise RuleError(
            f"the rule of {op.kind!r} has offsets {sorted(base.offsets)}, which no derivative can keep: freeze these "
            f"factors"
        )

    held = {f for dims in (*ins, *outs) for dim in dims for f in dim}
    fixed = {f for f, kind in base.reduced.items() if kind != "sum"} | set(base.carried)
    frozen = (base.frozen | fixed) & held
    lacking = {f for dims in outs for f in held - frozen - {f for dim in dims for f in dim}}
    return FactorRule.of(
        op,
        ins=ins,
        outs=outs,
        sizes={f: size for f, size in base.sizes.items() if f in held},
        reduced=dict.fromkeys(sorted(lacking), "sum"),
        frozen=frozen,
        linear=linear_sets(op, tuple(range(len(base.ins), len(ins)))),
    )


def _without_first(tensor: TensorInfo) -> TensorInfo:
    return replace(tensor, shape=tensor.shape[1:])


def _tensors(op: OpNode, outs: Outs) -> tuple[TensorInfo, ...]:
    """The results of the operator that `op` is a derivative of."""
    return tuple(TensorInfo(-1 - n, shape, dtype, 0) for n, (shape, dtype) in enumerate(outs))


_STEPS: dict[str, Callable[..., FactorRule]] = {"vmap": _vmap, "jvp": _jvp, "vjp": _vjp}
