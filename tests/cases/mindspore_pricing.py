"""MindSpore's pricing by bytes (release 1.0). For comparison with the plans that its tests assert."""

from __future__ import annotations

import tomllib
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement, StepKind
from autopar.core.strategy import Strategy
from autopar.cost.pricing import without_exchanges
from autopar.ops.traits import traits_of

_C: dict[str, float] = tomllib.loads(Path(__file__).with_name("mindspore_r1.toml").read_text())


@dataclass(frozen=True)
class MindSpore:
    """alpha * computation + beta * (forward communication + gamma * backward communication), in bytes.

    | operator | computation | communication |
    |---|---|---|
    | matrix product, cuts ((a, b), (b, c)) | slice(A) + slice(B) + [b > 1] slice(C) | backward: slice(B) of a parameter not cut over all devices |
    | reduction | slice(input), + slice(output) if a reduced dim is cut | |
    | other | slices of the operands | backward: slice of a replicated parameter |

    A cut contraction or reduction leaves its result unreduced: its forward communication is the all-reduce's. A
    communication c > 0 counts as 3072 if c <= 2048, else as c + 1024. Of a source slice of x bytes over n devices,
    all_gather is 0.5 n x forward and 0.5 x backward, all_to_all 2 x each way, all_reduce x; slices are free, the other
    steps do not exist. An operator whose first operand's first dim is cut over all devices costs 1 less. Every
    operator uses all devices if it can. An operand that was broadcast counts as it was before. Parameters are the
    carried inputs.

    Reference: MindSpore 1.0, operator_costmodel.cc and tensor_redistribution. Differs: all-reduces are steps.
    """  # noqa: E501 - a table

    graph: OpGraph
    mesh: DeviceMesh

    def op_cost(self, op: OpNode, strategy: Strategy) -> float:
        """The operator's computation and backward communication, less 1 for pure data parallelism."""
        if traits_of(op.kind).is_view:
            return 0.0
        computation = sum(self._slice(t, p) for t, p in zip(op.ins, strategy.ins, strict=True))
        if any(p.unreduced for p in strategy.outs):
            computation += sum(
                self._slice(t, p) for t, p in zip(op.outs, strategy.outs, strict=True)
            )
        backward = sum(
            _counted(self._slice(t, p))
            for t, p in zip(op.ins, strategy.ins, strict=True)
            if t.id in self._parameters and self.mesh.product(p.split_axes) < self.mesh.size
        )
        first = strategy.ins[0].dims[:1] if strategy.ins else ()
        tie_break = 1 if first and self.mesh.product(first[0]) == self.mesh.size > 1 else 0
        return _C["alpha"] * computation + _C["beta"] * _C["gamma"] * backward - tie_break

    def context(self, op: OpNode) -> Hashable:
        """Which operands are parameters, and what those that were broadcast were before."""
        return tuple((t.id in self._parameters, self._broadcast_dims(t)) for t in op.ins)

    def step_cost(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """The communication of a redistribution step, both directions in full; infinite for steps that do not exist."""
        n = self.mesh.product(axes)
        both = {
            "slice": (0.0, 0.0),
            "all_gather": (0.5 * size_bytes, 0.5 * size_bytes / n),
            "all_to_all": (2.0 * size_bytes, 2.0 * size_bytes),
            "all_reduce": (float(size_bytes), 0.0),
        }
        if kind not in both:
            return float("inf")
        forward, backward = both[kind]
        return _C["beta"] * (_counted(forward) + _counted(backward))

    def keep(self, op: OpNode, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        """The strategies that use all devices, or the most; unreduced operands and exchanges are unknown here."""
        known = [
            s for s in without_exchanges(op, strategies) if not any(p.unreduced for p in s.ins)
        ]
        if traits_of(op.kind).is_view:
            return tuple(known)
        most = max(s.split for s in known)
        return tuple(s for s in known if s.split == most)

    @cached_property
    def _parameters(self) -> frozenset[int]:
        return frozenset(self.graph.inputs[position].id for _, position in self.graph.carry)

    def _slice(self, tensor: TensorInfo, placement: Placement) -> float:
        """The bytes on one device of a tensor, before it was broadcast if it was."""
        shape = placement.local_shape(tensor.shape, self.mesh)
        before = self._broadcast_dims(tensor)
        if before is not None:
            shape = tuple(min(size, shape[d]) for size, d in before)
        return float(prod(shape) * tensor.itemsize)

    def _broadcast_dims(self, tensor: TensorInfo) -> tuple[tuple[int, int], ...] | None:
        """For a tensor that was broadcast, the size of each dim before and which dim it became."""
        producer = self.graph.producers.get(tensor.id)
        if producer is None or producer.kind != "broadcast_in_dim":
            return None
        dims: tuple[int, ...] = producer.params["broadcast_dimensions"]
        return tuple(zip(producer.ins[0].shape, dims, strict=True))


def _counted(size_bytes: float) -> float:
    if size_bytes <= 0:
        return 0.0
    return (
        _C["constant_bytes"]
        if size_bytes <= _C["threshold_bytes"]
        else size_bytes + _C["bias_bytes"]
    )
