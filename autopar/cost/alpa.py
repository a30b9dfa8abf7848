"""Alpa's pricing: communication only, one alpha and beta for each mesh axis. To compare with its published plans."""

from __future__ import annotations

import tomllib
from collections.abc import Hashable
from dataclasses import dataclass
from importlib.resources import files

from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import LOCAL_KINDS, StepKind
from autopar.core.strategy import Strategy
from autopar.cost.pricing import MakePricing, without_exchanges
from autopar.ops.traits import traits_of

_EXTRA: dict[str, float] = tomllib.loads(files("autopar.cost").joinpath("alpa.toml").read_text())


@dataclass(frozen=True)
class Alpa:
    """Alpa's objective, in its own unit.

        all_gather      a + b (n-1)/n bytes + 0.1           all_reduce  a + b 2(n-1)/n bytes + 0.01
        reduce_scatter  a + b (n-1)/n bytes + 0.001         all_to_all  a + b (n-1)/n^2 bytes (n/2) + 0.001

    n, a and b are the size, `alpha` and `beta` of the mesh axis, bytes those of the whole tensor within the group.
    Several axes are taken one after the other. Slicing is free, permutes do not exist, computing costs nothing, and a
    matrix product or convolution is never computed whole by several devices if it can be split over more. Since
    computing is free, ties abound: strategies that split more stand first, for the solver takes the first of equals.

    Reference: Zheng et al. 2022 (Alpa), auto-sharding.
    """

    mesh: DeviceMesh
    alpha: tuple[float, ...]
    beta: tuple[float, ...]

    def op_cost(self, op: OpNode, strategy: Strategy) -> float:
        """Nothing."""
        del op, strategy
        return 0.0

    def context(self, op: OpNode) -> Hashable:
        """Nothing."""
        del op
        return None

    def step_cost(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """The formula above; infinite for permutes, which Alpa does not have."""
        if kind in LOCAL_KINDS:
            return 0.0
        if kind == "permute":
            return float("inf")
        total = 0.0
        size = float(size_bytes)
        for axis in axes:
            n = self.mesh.product((axis,))
            if n > 1:
                total += self._axis_cost(kind, axis, n, size)
                size = size / n if kind in ("all_gather", "reduce_scatter") else size
        return total

    def keep(self, op: OpNode, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        """Products and convolutions split as far as they can be, other operators in all ways; most split first.

        None of them exchanges anything inside an operator.
        """
        ordered = tuple(
            sorted(without_exchanges(op, strategies), key=lambda strategy: -strategy.split)
        )
        if not traits_of(op.kind).is_contraction:
            return ordered
        return tuple(strategy for strategy in ordered if strategy.split == ordered[0].split)

    def _axis_cost(self, kind: StepKind, axis: str, n: int, size: float) -> float:
        position = self.mesh.names.index(axis)
        a = self.alpha[position]
        b = self.beta[position]
        share = {
            "all_gather": (n - 1) / n * size,
            "reduce_scatter": (n - 1) / n * size,
            "all_reduce": 2 * (n - 1) / n * size,
            "all_to_all": (n - 1) / n**2 * (size * n) * (n / 2),
        }[kind]
        return a + b * share + _EXTRA[kind]


def alpa_pricing(alpha: tuple[float, ...], beta: tuple[float, ...]) -> MakePricing:
    """Alpa's pricing with these constants for each mesh axis, in mesh order."""

    def make(graph: OpGraph, mesh: DeviceMesh) -> Alpa:
        del graph
        return Alpa(mesh, alpha, beta)

    return make
