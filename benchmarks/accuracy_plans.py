"""The plans whose times are predicted and measured: the solver's own, the usual ones, and others drawn at random.

Every plan is one that `autopar.plan` gives. The random ones are best under something drawn: under pins of inputs, or
under prices that are multiplied by factors; so they are plans that a person or another cost model might have chosen,
some good, some bad, and differ in many operators and collectives.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import exp, prod
from typing import Any
from zlib import crc32

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import StepKind
from autopar.core.strategy import Strategy
from autopar.cost.pricing import Pricing, Roofline
from autopar.errors import AutoparError
from benchmarks.models import Model
from cost_models import Cluster

SPREADS = (1.0, 2.0, 3.0)
"""Standard deviations of the logarithms of the factors on prices."""
PINNED = 4
"""Inputs that a random plan is held to, at least; half of them where there are more."""


@dataclass(frozen=True)
class Drawn:
    """A plan and how it came about: planned, data parallel, tensor parallel, pinned or perturbed."""

    kind: str
    plan: autopar.Plan


def drawn_plans(
    model: Model, cluster: Cluster, wanted: int, args: tuple[Any, ...] | None = None
) -> list[Drawn]:
    """`wanted` plans of a model's training step, whose programs differ.

    Args:
      model: what is trained.
      cluster: devices, as many as a power of two, at whose prices plans are found.
      wanted: how many plans; the first five are not random.
      args: the step's arguments, or only their shapes; None: the model's own.
    """
    found: dict[str, Drawn] = {}
    for drawn in _plans(model, cluster, (model.state, *model.batch) if args is None else args):
        found.setdefault(str(drawn.plan.program()), drawn)
        if len(found) == wanted:
            break
    return list(found.values())


def _plans(model: Model, cluster: Cluster, args: tuple[Any, ...]) -> Iterator[Drawn]:
    """Those that are not random, then random ones without end."""
    step, devices = model.step(), cluster.device_count
    rows, columns = grid_sizes(devices)
    line, grid = {"x": devices}, {"x": rows, "y": columns}

    def planned(kind: str, mesh: dict[str, int], **options: Any) -> Drawn:
        return Drawn(kind, autopar.plan(step, *args, cluster=cluster, mesh=mesh, **options))

    yield planned("planned", grid)
    yield planned("planned", line)
    yield planned("data parallel", line, mode="data_parallel")
    names = [
        row.name for row in autopar.plan(step, *args, cluster=cluster, mesh=line).summary.inputs
    ]
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(args)]
    hand = {"data": rows, "model": columns}
    yield planned(
        "tensor parallel", hand, constraints=_by_hand(model, names, shapes, split_batch=True)
    )
    yield planned(
        "tensor parallel",
        {"model": devices},
        constraints=_by_hand(model, names, shapes, split_batch=False),
    )
    for seed in count():
        mesh = line if seed % 4 == 3 else grid
        draw = random.Random(seed)
        if seed % 2:
            spread = SPREADS[seed // 2 % len(SPREADS)]
            yield planned("perturbed", mesh, pricing=perturbed(cluster, seed, spread))
            continue
        try:
            yield planned("pinned", mesh, constraints=_random_pins(draw, mesh, names, shapes))
        except AutoparError:  # no plan keeps to these pins: others are drawn
            continue


def grid_sizes(devices: int) -> tuple[int, int]:
    """A power of two as rows and columns, of which there are as many or twice as many."""
    rows = 2 ** ((devices.bit_length() - 1) // 2)
    return rows, devices // rows


def _by_hand(
    model: Model, names: Sequence[str], shapes: Sequence[tuple[int, ...]], *, split_batch: bool
) -> Any:
    """Pins of the parameters as `Model.spec` lays them out, and of the batch's first dims."""
    specs = jax.tree.leaves(model.state_specs(), is_leaf=lambda leaf: isinstance(leaf, P))
    specs += [P("data") if split_batch else P()] * len(model.batch)
    return tuple(
        autopar.pin(name, spec)
        for name, spec, shape in zip(names, specs, shapes, strict=True)
        if shape and name != "state['key']"
    )


def _random_pins(
    draw: random.Random,
    mesh: dict[str, int],
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
) -> Any:
    """Pins of some inputs: each mesh axis splits one of the dims that it divides, or none."""
    devices = prod(mesh.values())
    able = [
        n
        for n, shape in enumerate(shapes)
        if any(size % devices == 0 and size >= 8 * devices for size in shape)
    ]
    pins = []
    for number in draw.sample(able, min(len(able), max(PINNED, len(able) // 2))):
        dims: list[list[str]] = [[] for _ in shapes[number]]
        for axis in mesh:
            fitting = [n for n, size in enumerate(shapes[number]) if size % devices == 0]
            chosen = draw.choice([None, *fitting])
            if chosen is not None:
                dims[chosen].append(axis)
        pins.append(autopar.pin(names[number], P(*(tuple(axes) or None for axes in dims))))
    return tuple(pins)


@dataclass(frozen=True)
class Perturbed:
    """`pricing` with every price multiplied by a factor of its own: the exponential of `spread` times a normal number.

    Operators of one signature have one factor for each strategy, steps one for each kind and axes.
    """

    pricing: Pricing
    seed: int
    spread: float

    def op_cost(self, op: OpNode, strategy: Strategy) -> float:
        """As `pricing`, multiplied."""
        shapes = [tensor.shape for tensor in (*op.ins, *op.outs)]
        return self._factor(op.kind, shapes, strategy.ins, strategy.outs) * self.pricing.op_cost(
            op, strategy
        )

    def context(self, op: OpNode) -> Any:
        """As `pricing`."""
        return self.pricing.context(op)

    def step_cost(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """As `pricing`, multiplied."""
        return self._factor(kind, axes) * self.pricing.step_cost(kind, axes, size_bytes)

    def keep(self, op: OpNode, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        """As `pricing`."""
        return self.pricing.keep(op, strategies)

    def _factor(self, *what: object) -> float:
        draw = random.Random(crc32(repr((self.seed, what)).encode()))
        return exp(self.spread * draw.gauss())


def perturbed(cluster: Cluster, seed: int, spread: float) -> Any:
    """Makes pricings on `cluster` whose prices are multiplied by random factors."""

    def make(graph: OpGraph, mesh: DeviceMesh) -> Pricing:
        return Perturbed(Roofline(graph, mesh, cluster), seed, spread)

    return make
