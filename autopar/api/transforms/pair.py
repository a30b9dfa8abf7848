"""Pair: a forward and a backward program that meet in residuals, planned as one.

    forward(x)        -> y, r
    linear(r, dx)     -> dy            transposed: (r, dy) -> dx
    joint(x, dy)      -> y, dx         both in a row, the residuals named

A plan of `joint` says how everything lies that the two share: arguments, results, residuals, cotangents, gradients.
Each of the two is then planned on its own with these pinned. Nothing else connects them, so both plans together are as
good as that of `joint`, and no residual moves in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jax import ad_checkpoint

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._mesh import spec_of
from autopar.api.options import Settings
from autopar.api.transforms.derived import (
    Positions,
    gradient_names,
    inexact,
    tangent_aval,
    tangent_names,
)
from autopar.api.transforms.planned import ArgsKwargs, PlannedFunction, at, merged, settings_for
from autopar.core.placement import Placement
from autopar.operators import KEEP
from autopar.search.constraints.records import Layout, Named, Pin
from autopar.trace import CONSTANT
from autopar.trace.flat import TRACING, FlatFunction

untyped_checkpoint: Any = ad_checkpoint


@dataclass(frozen=True)
class KeptResidual:
    """What the backward part takes from the forward part: an operand, a result or an extra value, by number.

    A "constant" is known when the function is traced: `value`.
    """

    kind: str
    number: int = 0
    value: Any = None


@dataclass(frozen=True, eq=False)
class CutFunction:
    """A function cut in two: `evaluate` gives its results, then the extra values that are kept for the backward part.

    `linear(residuals)` is the function of tangents.
    """

    evaluate: Any
    tree: Any
    residuals: tuple[KeptResidual, ...]
    extra_avals: tuple[Any, ...]

    @property
    def passed(self) -> tuple[KeptResidual, ...]:
        """The residuals that are passed, in order."""
        return tuple(residual for residual in self.residuals if residual.kind != "constant")

    def linear(self, passed: Sequence[Any]) -> Any:
        """The function of tangents, for the values of the residuals that are passed."""
        rest = iter(passed)
        leaves = [
            residual.value if residual.kind == "constant" else next(rest)
            for residual in self.residuals
        ]
        return untyped_jax.tree.unflatten(self.tree, leaves)


@dataclass(frozen=True, eq=False)
class PlannedPair:
    """Both parts, planned as one; `passed` are the residuals that `linear` takes before the tangents."""

    joint: PlannedFunction
    forward: PlannedFunction
    linear: PlannedFunction
    passed: tuple[KeptResidual, ...]

    @property
    def parts(self) -> tuple[PlannedFunction, ...]:
        """All that is planned."""
        return self.joint, self.forward, self.linear


def pair(planned: PlannedFunction, moving: Positions, avals: Sequence[Any]) -> PlannedPair:
    """The parts of `planned`, of which the operands `moving` are differentiated; `avals` are those of all operands."""
    flat = planned.flat
    split = _split(planned, moving, avals)
    whole = _Names(flat, moving, inexact(planned), split)
    joint = _joint(planned, moving, avals, split, whole)

    def late(settings: Settings) -> Settings:
        return _as_in(joint, settings)

    def linear(*operands: Any) -> Any:
        count = len(split.passed)
        return split.linear(operands[:count])(*operands[count:])

    forward_flat = replace(
        flat,
        function=split.evaluate,
        name=f"forward of {flat.name}",
        outputs=whole.forward,
        part=True,
    )
    linear_flat = FlatFunction(
        linear,
        f"linear part of {flat.name}",
        (*whole.passed, *whole.tangents),
        whole.out_tangents,
        part=True,
    )
    settings = replace(_one_trace(settings_for(planned, "forward")), follow=None, shardings="move")
    forward = planned.derive(
        forward_flat, [*planned.results, *split.extra_avals], settings, planned.effects, late=late
    )
    out_tangents = [tangent_aval(planned.results[n]) for n in inexact(planned)]
    backward = planned.derive(linear_flat, out_tangents, replace(settings, mode="auto"), late=late)
    return PlannedPair(joint, forward, backward, split.passed)


class _Names:
    """How the pair's operands and results are called; what both parts have is called the same in both."""

    def __init__(
        self, flat: FlatFunction, moving: Positions, wanted: Positions, split: CutFunction
    ) -> None:
        extras = tuple(f"residual {n} of {flat.name}" for n in range(len(split.extra_avals)))
        place = {"operand": flat.inputs, "result": flat.outputs, "extra": extras}
        self.extras = extras
        self.forward = (*flat.outputs, *extras)
        self.passed = tuple(place[residual.kind][residual.number] for residual in split.passed)
        self.tangents = tangent_names(at(flat.inputs, moving))
        self.out_tangents = tangent_names(at(flat.outputs, wanted))


def _split(planned: PlannedFunction, moving: Positions, avals: Sequence[Any]) -> CutFunction:
    """Traces the function once, linearized. Operators are expanded unless they are to be kept."""
    flat = planned.flat
    wanted = inexact(planned)
    trees: list[Any] = []

    def both(*operands: Any) -> list[Any]:
        def moved(*values: Any) -> Any:
            outs = flat(*merged(operands, moving, values))
            return at(outs, wanted), outs

        _, linear, outs = untyped_jax.linearize(moved, *at(operands, moving), has_aux=True)
        residuals, tree = untyped_jax.tree.flatten(linear)
        trees.append(tree)
        return [*outs, *residuals]

    kept = planned.settings.options.operators == "kept"
    with TRACING(True), KEEP(kept), _compat.without_mesh():
        closed = untyped_jax.make_jaxpr(both)(*map(spec_of, avals))

    jaxpr, consts = _compat.open_jaxpr(closed)
    count = len(planned.results)
    known = dict(zip(jaxpr.constvars, consts, strict=True))
    found = _Residuals(jaxpr.invars, jaxpr.outvars[:count], known)
    residuals = tuple(found.residual(atom) for atom in jaxpr.outvars[count:])
    kept_outs = [*range(count), *(count + jaxpr.outvars[count:].index(var) for var in found.extras)]
    run = _compat.function_of(closed)

    def evaluate(*operands: Any) -> list[Any]:
        return at(run(*operands), kept_outs)

    return CutFunction(evaluate, trees[0], residuals, tuple(var.aval for var in found.extras))


class _Residuals:
    """Tells what the variables that are kept for the backward part are."""

    def __init__(
        self, invars: Sequence[Any], results: Sequence[Any], known: dict[Any, Any]
    ) -> None:
        self._known = known
        self._operands = {var: n for n, var in enumerate(invars)}
        self._results = {var: n for n, var in enumerate(results) if not _compat.is_literal(var)}
        self.extras: list[Any] = []

    def residual(self, atom: Any) -> KeptResidual:
        if _compat.is_literal(atom):
            return KeptResidual("constant", value=np.asarray(atom.val, atom.aval.dtype))
        if atom in self._known:
            return KeptResidual("constant", value=self._known[atom])
        if atom in self._operands:
            return KeptResidual("operand", self._operands[atom])
        if atom in self._results:
            return KeptResidual("result", self._results[atom])
        if atom not in self.extras:
            self.extras.append(atom)
        return KeptResidual("extra", self.extras.index(atom))


def _joint(
    planned: PlannedFunction,
    moving: Positions,
    avals: Sequence[Any],
    split: CutFunction,
    names: _Names,
) -> PlannedFunction:
    """Forward and backward in a row, with a cotangent for every result that has one."""
    flat = planned.flat
    wanted = inexact(planned)
    count = len(flat.inputs)
    results = len(planned.results)

    def function(*operands: Any) -> list[Any]:
        values = split.evaluate(*operands[:count])
        tagged = zip(values[results:], names.extras, strict=True)
        extras: list[Any] = [
            untyped_checkpoint.checkpoint_name(value, name) for value, name in tagged
        ]
        place = {"operand": operands, "result": values, "extra": extras}
        linear = split.linear([place[residual.kind][residual.number] for residual in split.passed])
        pull = untyped_jax.linear_transpose(
            linear, *(spec_of(tangent_aval(avals[n])) for n in moving)
        )
        return [*values[:results], *pull(list(operands[count:]))]

    derived = replace(
        flat,
        function=function,
        name=f"vjp of {flat.name}",
        inputs=(*flat.inputs, *gradient_names(at(flat.outputs, wanted))),
        outputs=(*flat.outputs, *gradient_names(at(flat.inputs, moving))),
    )
    carry = tuple((results + k, n) for k, n in enumerate(moving))
    settings = _one_trace(replace(settings_for(planned, "vjp"), carry=carry))
    made = [*planned.results, *(tangent_aval(avals[n]) for n in moving)]
    whole = planned.derive(derived, made, settings)
    specs = [*avals, *(tangent_aval(planned.results[n]) for n in wanted)]
    return replace(whole, unflatten=partial(_example, tuple(map(spec_of, specs))))


def _example(specs: tuple[Any, ...], _operands: Sequence[Any]) -> ArgsKwargs:
    return specs, {}


def _one_trace(settings: Settings) -> Settings:
    """One way to trace: operators in a jaxpr are kept or expanded for good, and loops are whole where both would do."""
    options = settings.options
    operators = "kept" if options.operators == "kept" else "expanded"
    loops = "whole" if options.loops == "best" else options.loops
    return replace(settings, options=replace(options, operators=operators, loops=loops))


def _as_in(joint: PlannedFunction, settings: Settings) -> Settings:
    """`settings`, held to how things lie in the plan of `joint`, on its mesh."""
    args, kwargs = joint.unflatten(())
    plan = joint.compiled.plan(*args, **kwargs)
    pins = tuple(
        Pin(Named(name), Layout(placement.dims)) for name, placement in _placements(plan).items()
    )
    return replace(
        settings,
        mesh=dict(plan.mesh.axes),
        devices=settings.own_devices(),
        constraints=(*settings.constraints, *pins),
    )


def _placements(plan: Any) -> dict[str, Placement]:
    """How the inputs, outputs and named values of a plan lie."""
    graph = plan.bound.traced.graph
    stage = plan.record.stage
    found = {
        str(op.params["name"]): stage.strategies[op.id].outs[0]
        for op in graph.ops
        if op.kind == "name"
    }
    found |= {tensor.name: p for tensor, p in zip(graph.inputs, stage.inputs, strict=True)}
    found |= {graph.output_name(n): p for n, p in enumerate(stage.outputs)}
    return {name: placement for name, placement in found.items() if not name.startswith(CONSTANT)}
