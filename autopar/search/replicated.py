"""Replicated: what the user is told of what stays whole: operators without a written rule, and uneven data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.plan import Stage
from autopar.errors import FoundRuleWarning, UnsplitDataWarning, UnsupportedPrimitiveWarning, users_level
from autopar.price.pricing import Pricing
from autopar.rules.enumerate import enumerate_strategies
from autopar.rules.notation import show
from autopar.rules.registry import has_rule, whole
from autopar.search.constraints import Constraint, Pin
from autopar.search.resolve import FindRule, found_rules, note_of


def warn_unwritten(graph: OpGraph, mesh: DeviceMesh, pricing: Pricing, find: FindRule) -> None:
    """Warns of operators that no rule is written for: once for every kind whose rule was found, and of the others."""
    for kind, (op, rule) in found_rules(graph, find).items():
        warnings.warn(
            f"no sharding rule for {kind!r} ({op.source}): one was found by trial, which is evidence and no proof. If "
            f"it is right, state it by autopar.register_rule({kind!r}, {show(rule)}).",
            FoundRuleWarning,
            stacklevel=users_level(),
        )
    _warn_replicated(graph, mesh, pricing, find)


def warn_unsplit(graph: OpGraph, stage: Stage, constraints: Sequence[Constraint]) -> None:
    """Warns where a constraint was to split the data, but all of it is whole, as nothing divides evenly."""
    wanted = stage.mesh.size > 1 and any(isinstance(c, Pin) and c.uneven == "replicate" for c in constraints)
    data = [n for n in graph.batch_inputs if graph.inputs[n].size_bytes]
    if not wanted or not data or any(stage.inputs[n].split_axes for n in data):
        return
    largest = max((graph.inputs[n] for n in data), key=lambda tensor: tensor.size_bytes)
    warnings.warn(
        f"the data is not split: dim 0 of {largest.name} of shape {largest.shape} does not divide evenly by the "
        f"{stage.mesh.size} devices of mesh {stage.mesh}, nor does that of any other data, so every device computes "
        f"all of it. Pass a batch that divides, name a smaller mesh, or choose mode='auto'.",
        UnsplitDataWarning,
        stacklevel=users_level(),
    )


def _warn_replicated(graph: OpGraph, mesh: DeviceMesh, pricing: Pricing, find: FindRule) -> None:
    """Warns once for every kind and source line of operators that no rule is known for, with what they cost.

    The price is that of every device computing them whole, which is the same on every mesh; moving their operands
    there comes on top and depends on the plan.
    """
    prices: dict[tuple[str, str, str], list[float]] = {}
    for op in graph.ops:
        if not has_rule(op.kind) and find(op) is None:
            strategy = enumerate_strategies(whole(op), mesh)[0]
            place = op.kind, op.source, note_of(find, op)
            prices.setdefault(place, []).append(pricing.op_cost(op, strategy))
    for (kind, source, note), costs in prices.items():
        times = f" {len(costs)} times" if len(costs) > 1 else ""
        warnings.warn(
            f"no sharding rule for {kind!r} ({source}): it is replicated, every device computes it whole{times}, "
            f"priced at {sum(costs):.3g} s a step. Register a rule with autopar.register_rule, or pass strict=True to "
            f"refuse it.{note}",
            UnsupportedPrimitiveWarning,
            stacklevel=users_level(),
        )
