"""Replicated: what the user is told of what stays whole: operators without a written rule, and uneven data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from autopar.core.graph import OpGraph, OpNode
from autopar.core.manual import manual_axes
from autopar.core.mesh import DeviceMesh
from autopar.core.plan import Stage
from autopar.cost.pricing import Pricing
from autopar.errors import (
    FoundRuleWarning,
    UnpricedWarning,
    UnsplitDataWarning,
    UnsupportedPrimitiveWarning,
    WholeBitsWarning,
    users_level,
)
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.kernels import has_no_price
from autopar.ops.rules.notation import show
from autopar.ops.rules.registry import has_rule, whole
from autopar.search.constraints.records import Constraint, Pin
from autopar.search.resolve import FindRule, found_rules, note_of

_STREAMS = frozenset({"rng_bit_generator", "rng_uniform"})
_UNPRICED = {
    "pallas_call": ("a kernel", "State it: pallas_call(..., cost_estimate=pl.CostEstimate(...))."),
    "shard_map": (
        "a shard_map",
        "Take out of its body what a plan cannot walk: callbacks, collectives in groups or of ragged parts.",
    ),
}
_MUCH = 0.01
_FEW_BYTES = 1 << 16
"""Fewer bits take no longer than a kernel that makes none."""


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


def warn_unpriced(graph: OpGraph) -> None:
    """Warns once for every source line of what nobody but its author can look into, where no cost is stated."""
    for kind, source in dict.fromkeys((op.kind, op.source) for op in graph.ops if has_no_price(op)):
        what, remedy = _UNPRICED["shard_map" if kind == "shard_map" else "pallas_call"]
        where = source or "at an unknown line"
        warnings.warn(
            f"{what} ({where}) is priced as reading its operands and writing its results, and no more: what it "
            f"computes, sends and holds inside is not known. {remedy}",
            UnpricedWarning,
            stacklevel=users_level(),
        )


def warn_unsplit(graph: OpGraph, stage: Stage, constraints: Sequence[Constraint]) -> None:
    """Warns where a constraint was to split the data, but all of it is whole, as nothing divides evenly."""
    wanted = stage.mesh.size > 1 and any(
        isinstance(c, Pin) and c.uneven == "replicate" for c in constraints
    )
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


def warn_whole_bits(graph: OpGraph, stage: Stage, pricing: Pricing, step_s: float) -> None:
    """Warns of random bits that every device has to make whole, if that takes a hundredth of a step or more."""

    def is_whole(op: OpNode) -> bool:
        return all(
            s.split == 1 for s in pricing.keep(op, enumerate_strategies(rule_of(op), stage.mesh))
        )

    drawn = [
        op
        for op in graph.ops
        if op.kind in _STREAMS and op.outs[-1].size_bytes >= _FEW_BYTES and is_whole(op)
    ]
    taken_s = sum(
        graph.tree.weight(op.region) * pricing.op_cost(op, stage.strategies[op.id]) for op in drawn
    )
    if stage.mesh.size == 1 or not drawn or taken_s < _MUCH * step_s:
        return

    largest = max(drawn, key=lambda op: op.outs[-1].size_bytes)
    warnings.warn(
        f"every device makes all random bits of {len(drawn)} draws, which takes {taken_s:.3g} s of a step of "
        f"{step_s:.3g} s: the largest, of shape {largest.outs[-1].shape} ({largest.source}), cannot be split. Its "
        f"generator counts on through all elements, in a way that is the device's own or does not fit the shards. Use "
        f"the generator that makes every element for itself: jax.config.update('jax_default_prng_impl', "
        f"'threefry2x32'), or jax.random.key(seed, impl='threefry2x32').",
        WholeBitsWarning,
        stacklevel=users_level(),
    )


def _warn_replicated(graph: OpGraph, mesh: DeviceMesh, pricing: Pricing, find: FindRule) -> None:
    """Warns once for every kind and source line of operators that no rule is known for, with what they cost.

    The price is that of every device computing them whole, which is the same on every mesh; moving their operands
    there comes on top and depends on the plan.
    """
    prices: dict[tuple[str, str, str], list[float]] = {}
    for op in graph.ops:
        if not has_rule(op.kind) and not manual_axes(op) and find(op) is None:
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
