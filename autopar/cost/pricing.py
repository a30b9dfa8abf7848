"""Pricing: what operators and redistributions cost. Roofline and topology here; other people's formulas beside it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from autopar.backends.backend import Backend
from autopar.backends.known import backend_of
from autopar.core.graph import OpGraph, OpNode
from autopar.core.manual import BORDERS, COLLECTIVES
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import StepKind
from autopar.core.repeated import merged
from autopar.core.strategy import Exchange, Strategy, StrategyArrays
from autopar.cost.collectives import collective_s
from autopar.cost.exchange_costs import cost_beside, exchange_cost, joining_s
from autopar.cost.lanes import all_filled_up, filled_up
from autopar.cost.operators.body import body_time_s
from autopar.cost.operators.fused import (
    Bounds,
    bounds,
    has_manual_axes,
    kernel_flops,
    kernel_shares,
)
from autopar.cost.operators.local_work import LocalWork, beside_s
from autopar.cost.operators.products import as_product, elements_of, with_groups
from autopar.ops.exchanged import laid_out_bytes, rounds
from autopar.ops.fusion import Fusing, in_products, materialised, own_loops, rows, written_out
from autopar.ops.odd_products import Shares, widens
from autopar.ops.picked import picked_runs
from autopar.ops.rate_kind import rate_kind
from autopar.ops.rules.attention import ATTENTION, slowest
from autopar.ops.rules.kernels import stated_bytes
from autopar.ops.touched import reads_what_it_writes
from autopar.ops.traits import traits_of
from autopar.redistribute.step import PackPrice, TurnPrice, no_pack, no_turn
from cost_models import Cluster, Group, compute_times_s, group
from cost_models.compute import host_time_s, moving_time_s

Floats = NDArray[np.float64]


class Pricing(Protocol):
    """The prices of one graph on one mesh."""

    def op_cost(self, op: OpNode, strategy: Strategy) -> float:
        """The cost of computing `op` so: finite and >= 0. What it exchanges inside costs `step_cost`."""
        ...

    def context(self, op: OpNode) -> Hashable:
        """What `op_cost` looks at beside the operator's signature: where both are equal, so are costs."""
        ...

    def step_cost(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """The cost of a redistribution step, as StepPrice."""
        ...

    def keep(self, op: OpNode, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        """The strategies that this pricing knows; never none."""
        ...


@runtime_checkable
class Batched(Protocol):
    """A pricing that prices all strategies of an operator at once."""

    def op_costs(
        self, op: OpNode, strategies: tuple[Strategy, ...], layout: StrategyArrays
    ) -> Floats | None:
        """What `op_cost` says of each of `strategies`, whose arrays are `layout`; None where it cannot."""
        ...


@runtime_checkable
class Contextual(Protocol):
    """A pricing that says on which meshes its contexts are the same."""

    @property
    def contexts(self) -> Hashable:
        """Equal where `context` is, of all operators of its graph."""
        ...


@runtime_checkable
class Turning(Protocol):
    """A pricing to which it matters along which dim a step goes, and of how many tensors a collective is."""

    @property
    def turn_cost(self) -> TurnPrice:
        """The cost of what is copied beside a step along a dim other than the first; `no_turn` if that is nothing."""
        ...

    @property
    def pack_cost(self) -> PackPrice:
        """The cost of a bucket beside its collective; `no_pack` if that is nothing."""
        ...


@runtime_checkable
class Sharing(Protocol):
    """A pricing under which collectives that can wait for each other cost what one of all their bytes does."""

    @property
    def shares(self) -> bool:
        """Whether they do."""
        ...


@runtime_checkable
class Arriving(Protocol):
    """A pricing under which arguments that come anew with every call cost something by themselves."""

    def arrival_cost(self, size_bytes: int) -> float:
        """The cost of so many bytes that one device is given."""
        ...


def arrival_cost(pricing: Pricing, size_bytes: int) -> float:
    """`Arriving.arrival_cost` of a pricing that has it; else nothing."""
    return pricing.arrival_cost(size_bytes) if isinstance(pricing, Arriving) else 0.0


def shares(pricing: Pricing) -> bool:
    """`Sharing.shares` of a pricing that has it; else False."""
    return isinstance(pricing, Sharing) and pricing.shares


def turn_price(pricing: Pricing) -> TurnPrice:
    """`turn_cost` of a pricing that has one; else nothing."""
    return pricing.turn_cost if isinstance(pricing, Turning) else no_turn


def pack_price(pricing: Pricing) -> PackPrice:
    """`pack_cost` of a pricing that has one; else nothing."""
    return pricing.pack_cost if isinstance(pricing, Turning) else no_pack


def costs_of(
    pricing: Pricing, op: OpNode, strategies: tuple[Strategy, ...], layout: StrategyArrays
) -> Floats:
    """`cost_of` for each of the strategies, whose arrays are `layout`."""
    found = pricing.op_costs(op, strategies, layout) if isinstance(pricing, Batched) else None
    if found is None:
        return np.array([cost_of(pricing, op, s) for s in strategies], dtype=np.float64)
    for n in layout.exchanging:
        found[n] = cost_of(pricing, op, strategies[n])
    return found


def cost_of(pricing: Pricing, op: OpNode, strategy: Strategy) -> float:
    """The cost of running `op` so, its exchanges included."""
    return pricing.op_cost(op, strategy) + sum(
        exchange_cost(pricing, op, strategy, e) for e in strategy.exchanges
    )


def without_exchanges(op: OpNode, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
    """Those that communicate nothing inside the operator, the replicated one among them; all of a user's collective."""
    return strategies if op.kind in COLLECTIVES else tuple(s for s in strategies if not s.exchanges)


def compiler_of(pricing: object) -> str:
    """Who compiles for the device that `pricing` is about, as `cost_models.Device` says; "" if it knows no device."""
    if isinstance(pricing, Roofline):
        return pricing.cluster.device.compiler
    inner = getattr(pricing, "pricing", None)
    return "" if inner is None else compiler_of(inner)


MakePricing = Callable[[OpGraph, DeviceMesh], Pricing]


@dataclass(frozen=True)
class Wrapped:
    """A pricing that says what `pricing` does: a base of those that differ from one in a few answers."""

    pricing: Pricing

    def op_cost(self, op: OpNode, strategy: Strategy) -> float:
        """As `pricing`."""
        return self.pricing.op_cost(op, strategy)

    def op_costs(
        self, op: OpNode, strategies: tuple[Strategy, ...], layout: StrategyArrays
    ) -> Floats | None:
        """As `pricing`."""
        return (
            self.pricing.op_costs(op, strategies, layout)
            if isinstance(self.pricing, Batched)
            else None
        )

    def context(self, op: OpNode) -> Hashable:
        """As `pricing`."""
        return self.pricing.context(op)

    def step_cost(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """As `pricing`."""
        return self.pricing.step_cost(kind, axes, size_bytes)

    def exchange_cost(self, op: OpNode, strategy: Strategy, exchange: Exchange) -> float:
        """As `pricing`."""
        return exchange_cost(self.pricing, op, strategy, exchange)

    @cached_property
    def turn_cost(self) -> TurnPrice:
        """As `pricing`."""
        return turn_price(self.pricing)

    @cached_property
    def pack_cost(self) -> PackPrice:
        """As `pricing`."""
        return pack_price(self.pricing)

    @property
    def shares(self) -> bool:
        """As `pricing`."""
        return shares(self.pricing)

    def arrival_cost(self, size_bytes: int) -> float:
        """As `pricing`."""
        return arrival_cost(self.pricing, size_bytes)

    def keep(self, op: OpNode, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        """As `pricing`."""
        return self.pricing.keep(op, strategies)


@dataclass(frozen=True)
class Restricted(Wrapped):
    """`pricing` with only the redistribution steps of `step_kinds`: the others do not exist."""

    step_kinds: tuple[StepKind, ...]

    def step_cost(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """As `pricing`, infinite for what is not allowed."""
        return self.pricing.step_cost(kind, axes, size_bytes) if kind in self.step_kinds else inf

    def exchange_cost(self, op: OpNode, strategy: Strategy, exchange: Exchange) -> float:
        """As `pricing`, infinite for what is not allowed."""
        if exchange.kind not in self.step_kinds:
            return inf
        return exchange_cost(self.pricing, op, strategy, exchange)

    def keep(self, op: OpNode, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        """As `pricing`, without those that exchange by steps that are not allowed; the user's own are."""
        if op.kind not in COLLECTIVES:
            strategies = tuple(
                s for s in strategies if all(e.kind in self.step_kinds for e in s.exchanges)
            )
        return self.pricing.keep(op, strategies)


def restricted(pricing: Pricing, step_kinds: tuple[StepKind, ...]) -> Pricing:
    """`pricing` with only these steps; () allows all."""
    return Restricted(pricing, step_kinds) if step_kinds else pricing


@dataclass(frozen=True)
class Roofline:
    """Seconds on `cluster`: roofline compute and topology-aware collectives.

        kernel: max(flops / peak, bytes / memory bandwidth), of one device's share
        collective: cost_models.collective_time_s       slice, mask: a kernel that reads and writes the part
        gather that the compiler sums: an all-reduce, and a kernel that writes the whole

    Of several operators in one kernel each costs its part of what bounds that (`fused`). Only tensors that reach memory
    count as bytes (`work.materialised`), of these what is read and written (`touched`), and a copy of what is
    lengthened by a halo; an operator none of whose results do is part of another kernel and is not launched. Views are
    free, but for broadcasts that are written (`work.written_out`) and what loops copy (`Backend.copied`). What indices
    pick takes no less than its runs (`picked`). A function treated as one operator costs what is in it
    (`cost.operators.body`). Copies in another order of dims cost what the backend says; so much more of a part is moved
    as its last dim is filled up. No overlap.
    """

    graph: OpGraph
    mesh: DeviceMesh
    cluster: Cluster

    @cached_property
    def _groups(self) -> dict[tuple[str, ...], Group]:
        """Those asked about so far, by their axes."""
        return {}

    @cached_property
    def _in_memory(self) -> frozenset[int]:
        return materialised(self.graph, self._fusing)

    @cached_property
    def _fusing(self) -> Fusing:
        return self._backend.fusing

    @cached_property
    def _in_products(self) -> frozenset[int]:
        """The operators that products do on their results: they are launched with these, and compute nothing."""
        return in_products(self.graph, self._fusing)

    def op_cost(self, op: OpNode, strategy: Strategy) -> float:
        """Seconds of one device's share of `op`."""
        if self._is_free(op) or (self._folds(op) and strategy.ins[0].unreduced):
            return 0.0
        if op.crosses_memories:
            size = op.ins[0].size_bytes // self.mesh.product(strategy.ins[0].split_axes)
            return host_time_s(size, self.cluster.device)
        if op.body is not None:
            is_merged = op.id in merged(self.graph)
            return body_time_s(op, strategy, self.mesh, self.cluster.device, merged=is_merged)
        return self.local_work(op, strategy).time_s(self.cluster.device) + joining_s(
            op, strategy, self.mesh, self.cluster.device
        )

    def local_work(self, op: OpNode, strategy: Strategy) -> LocalWork:
        """One device's share of `op`, which is not free and no function in one."""
        placed = tuple(zip((*op.ins, *op.outs), (*strategy.ins, *strategy.outs), strict=True))
        sizes = [
            placement.local_size(tensor.shape, self.mesh)
            * tensor.itemsize
            * filled_up(tensor, placement, self.mesh, self._backend.lanes)
            for tensor, placement in placed
        ]
        if reads_what_it_writes(op):
            sizes = [min(size, sizes[-1]) for size in sizes]

        size = sum(share * size for size, share in zip(sizes, self._moved(op), strict=True))
        if op.id in self._rows and strategy.outs[0].unreduced:
            size += sizes[0]
        if (stated := stated_bytes(op)) is not None:
            size = stated / strategy.split

        flops = self._flops(op) / strategy.split * slowest(op, strategy, self.mesh)
        flops *= self._backend.times(op, sizes[: len(op.ins)])
        elements = None
        if strategy.exchanges:
            times = rounds(op, strategy)
            flops = flops * times
            size = size * times + laid_out_bytes(op, strategy, self.mesh)

        if traits_of(op.kind).is_contraction and flops:
            lhs, rhs, out = (
                float(placement.local_size(tensor.shape, self.mesh)) for tensor, placement in placed
            )
            elements = as_product(op, (lhs, rhs, out), flops)

        held = with_groups(op, sizes, (strategy,), self.mesh)
        dtype = op.ins[0].dtype if op.ins else op.outs[0].dtype
        launched = self._is_launched(op)
        parts = tuple(float(self.mesh.product(placement.split_axes)) for _, placement in placed)
        runs = picked_runs(op, parts)
        turned = op.id in self._turned
        return LocalWork(
            op,
            flops,
            size,
            dtype,
            rate_kind(op),
            elements,
            launched,
            tuple(float(np.sum(size)) for size in held[: len(op.ins)]),
            runs,
            turned,
            self._padding.get(op.id, (0.0, 0.0)),
        )

    def op_costs(
        self, op: OpNode, strategies: tuple[Strategy, ...], layout: StrategyArrays
    ) -> Floats | None:
        """`op_cost` of all strategies that exchange nothing, at once; None for functions treated as one operator."""
        if op.body is not None or op.crosses_memories:
            return None
        if self._is_free(op):
            return np.zeros(len(strategies))

        sizes = [
            t.size_bytes // parts
            for t, parts in zip((*op.ins, *op.outs), layout.parts, strict=True)
        ]
        if self._backend.lanes > 1:
            shares = all_filled_up(op, strategies, self.mesh, self._backend.lanes)
            sizes = [mine * share for mine, share in zip(sizes, shares, strict=True)]
        if reads_what_it_writes(op):
            sizes = [np.minimum(mine, sizes[-1]) for mine in sizes]

        moving = (share * mine for mine, share in zip(sizes, self._moved(op), strict=True) if share)
        stated = stated_bytes(op)
        size = sum(moving, np.zeros(len(strategies))) if stated is None else stated / layout.split
        device = self.cluster.device
        dtype = op.ins[0].dtype if op.ins else op.outs[0].dtype
        if op.id in self._rows:
            size = size + sizes[0] * np.array([bool(s.outs[0].unreduced) for s in strategies])
        flops = self._flops(op) / layout.split * self._backend.times(op, sizes[: len(op.ins)])
        if op.kind in ATTENTION:
            flops = flops * np.array([slowest(op, each, self.mesh) for each in strategies])
        elements = None
        if traits_of(op.kind).is_contraction and len(flops) and flops.min() > 0:
            elements = as_product(op, elements_of(op, layout.parts), flops)

        runs = picked_runs(op, [mine.astype(np.float64) for mine in layout.parts])
        held = with_groups(op, sizes, strategies, self.mesh)
        time_s = beside_s(op, held, device) + compute_times_s(
            flops,
            size,
            dtype,
            device,
            kind=rate_kind(op),
            elements=elements,
            widens=widens(op),
            runs=runs,
        )
        if elements is not None and op.kind == "dot_general":
            turned = op.id in self._turned
            time_s = time_s + self._backend.product_turns_s(
                op,
                elements,
                flops,
                device,
                turned=turned,
                padding=self._padding.get(op.id, (0.0, 0.0)),
            )

        if self._folds(op):
            time_s = np.where(
                [bool(strategy.ins[0].unreduced) for strategy in strategies], 0.0, time_s
            )

        return time_s if self._is_launched(op) else np.maximum(0.0, time_s - device.launch_s)

    def _moved(self, op: OpNode) -> tuple[float, ...]:
        """The share of each operand and result that counts."""
        return kernel_shares(
            self.graph,
            op,
            self._fusing,
            self._bounds,
            self._own_loops[op.id],
            self.mesh.size,
        )

    def _flops(self, op: OpNode) -> float:
        """The operations that count."""
        return kernel_flops(self.graph, op, self._fusing, self._bounds, self._own_loops[op.id])

    @cached_property
    def _own_loops(self) -> tuple[int, ...]:
        return own_loops(self.graph, self._fusing, self._backend.counting)

    @cached_property
    def _rows(self) -> frozenset[int]:
        """The reductions over rows that their readers' loop computes: of parts of rows they are kernels of their own,
        which read them once more.
        """
        mine = rows(self.graph, self._fusing)
        return frozenset(n for n in mine if self.graph.ops[n].outs[0].id not in self._in_memory)

    def _is_launched(self, op: OpNode) -> bool:
        """Whether it is a kernel, or the last operator of one."""
        return op.id not in self._in_products and any(t.id in self._in_memory for t in op.outs)

    @cached_property
    def _bounds(self) -> Bounds:
        return bounds(self.graph, self.cluster.device, self.mesh.size, dict(self.mesh.axes))

    def _is_free(self, op: OpNode) -> bool:
        """Whether nothing is computed or moved for `op` itself."""
        if op.kind in BORDERS:
            return not any(self._moved(op))
        return (traits_of(op.kind).is_view and op.id not in self._written_out) or not (
            op.ins or op.outs
        )

    @cached_property
    def _written_out(self) -> frozenset[int]:
        return written_out(self.graph, self._fusing) | self._backend.copied(self.graph)

    def _folds(self, op: OpNode) -> bool:
        """Whether the compiler computes the product before `op` the other way round, where nothing comes between."""
        return op.kind == "transpose" and op.id in self._folded

    @cached_property
    def _folded(self) -> frozenset[int]:
        return self._backend.folded(self.graph)

    @cached_property
    def _turned(self) -> frozenset[int]:
        return self._backend.turned_products(self.graph)

    @cached_property
    def _padding(self) -> Mapping[int, Shares]:
        return self._backend.padding_shares(self.graph)

    @property
    def _backend(self) -> Backend:
        return backend_of(self.cluster.device.compiler)

    def context(self, op: OpNode) -> Hashable:
        """What it moves, what bounds its kernels, how many these are, whether it ends one, whether it is a view, a row
        or part of a product, and what it pays of padding.
        """
        folds = op.kind == "transpose" and op.id in self._folded
        turned = op.kind == "dot_general" and op.id in self._turned

        return (
            folds,
            turned,
            self._is_launched(op),
            op.id in self._written_out,
            op.id in self._rows,
            op.id in self._in_products,
            self._own_loops[op.id],
            self._bounds.get(op.id),
            self._moved(op),
            self._padding.get(op.id),
            op.body is not None and op.id in merged(self.graph),
        )

    @property
    def contexts(self) -> Hashable:
        """The device, how many there are, and the axes where some are manual (`bounds`)."""
        axes = self.mesh.axes if has_manual_axes(self.graph) else ()
        return "roofline", self.cluster.device, self.mesh.size, axes

    def step_cost(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """Seconds of one redistribution step."""
        if kind == "slice" or kind == "mask":
            part = size_bytes // self.mesh.product(axes) if kind == "slice" else size_bytes
            return moving_time_s(2 * part, self.cluster.device) + self.cluster.device.launch_s
        if axes not in self._groups:
            positions = tuple(self.mesh.names.index(axis) for axis in axes)
            self._groups[axes] = group(self.cluster.topology, self.mesh.sizes, positions)
        return collective_s(kind, size_bytes, self._groups[axes], self.cluster.device)

    def exchange_cost(self, op: OpNode, strategy: Strategy, exchange: Exchange) -> float:
        """Seconds of an exchange; of one in rounds, its share of what these take longer than computing alone."""
        return cost_beside(self, op, strategy, exchange, self.cluster.device.overlap)

    @cached_property
    def turn_cost(self) -> TurnPrice:
        """Seconds of what a device copies beside a step along a dim other than the first."""
        return self._backend.turn_price(self.cluster.device)

    @cached_property
    def pack_cost(self) -> PackPrice:
        """Seconds that a bucket takes beside its collective."""
        return self._backend.pack_price(self.cluster.device, self.mesh, self.step_cost)

    def arrival_cost(self, size_bytes: int) -> float:
        """Writing it to memory, which whatever brings it does at least: so nothing is whole for next to no gain."""
        return size_bytes / self.cluster.device.memory_bandwidth_bytes_per_s

    @property
    def shares(self) -> bool:
        """Latencies are paid once for a bucket."""
        return True

    def keep(self, op: OpNode, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        """All of them, but of random bits that every device makes all of."""
        if op.kind == "rng_bit_generator" and self._backend.repeats_random_bits:
            return strategies[:1]
        return strategies
