"""Local steps: slices and masks, by which a device takes its part of what it holds. They compute, and send nothing.

A compiler takes them into the loop of whoever reads them element by element, which then reads from another place, or
keeps what it is to keep: that costs next to nothing beside it. Elsewhere they are a kernel that reads and writes the
part. Found on XLA's CPU compiler (JAX 0.10.2), a part of 8 MiB of 64: sums, sines and transposes of a slice are one
kernel, as fast as of the part; products and row sums come behind a kernel that takes what adding 1 to the part does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from autopar.core.dataflow import Use
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import LOCAL_KINDS, StepKind
from autopar.cost.pricing import Pricing
from autopar.ops.traits import is_fusible
from autopar.redistribute.step import StepPrice

FUSED_S = 1e-9
"""What a local step in a reader's loop costs: less than anything else, and more than no step.

For nothing, plans with steps that serve nobody would be as good: the solve of a GPT on three axes took six times as
long, and its program had 46 of them.
"""


def in_loops(graph: OpGraph, region: int | None, uses: Sequence[Use]) -> bool:
    """Whether all of `uses`, of which there are some, take local steps that are done in `region` into their loops.

    What is done before a loop that reads it in every round, or for the caller, is written.
    """
    return bool(uses) and all(
        use.op is not None and use.region == region and is_fusible(graph.ops[use.op])
        for use in uses
    )


def fused_price(pricing: Pricing, mesh: DeviceMesh) -> StepPrice | None:
    """What steps cost before those that take local ones into their loops; None if that is what they cost anyway."""
    size = 2**20 * mesh.size
    if not any(FUSED_S < pricing.step_cost(kind, mesh.names, size) < inf for kind in LOCAL_KINDS):
        return None

    def price(kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        alone = pricing.step_cost(kind, axes, size_bytes)
        return min(alone, FUSED_S) if kind in LOCAL_KINDS and alone < inf else alone

    return price
