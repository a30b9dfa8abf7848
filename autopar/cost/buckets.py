"""Buckets: collectives that can wait for each other run as one; what each of them costs is its share of that."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import chain, combinations
from weakref import WeakValueDictionary

from autopar.backends.known import backend_of
from autopar.core.graph import OpGraph
from autopar.core.memo import once_per_graph
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import StepKind
from autopar.core.regions import LEAVING
from autopar.cost.cached_pricing import Remembered
from autopar.cost.local_steps import fused_price
from autopar.cost.pricing import Pricing, Roofline, compiler_of, pack_price, shares, turn_price
from autopar.cost.weighted import Weighted
from autopar.ops.traits import is_cast_or_rearrangement
from autopar.redistribute.route import Router
from autopar.redistribute.step import StepPrice

BUCKET_BYTES = 64 * 2**20
"""At which a bucket of all-reduces is closed."""
SHARD_BUCKET_BYTES = 16 * 2**20
"""At which one of reduce-scatters or all-gathers is, which holds whole tensors beside their shards."""
_CLOSED_AT: dict[StepKind, int] = {
    "all_reduce": BUCKET_BYTES,
    "reduce_scatter": SHARD_BUCKET_BYTES,
}
_KNOWN: WeakValueDictionary[Hashable, Router] = WeakValueDictionary()
"""The routers that are in use, by all that their prices depend on."""


def router_of(
    graph: OpGraph, mesh: DeviceMesh, pricing: Pricing, hidden_weight: float = 1.0
) -> Router:
    """The routes of the tensors of `graph` under `pricing`: alone, shared, fused; what hides counts at its weight.

    Where steps and buckets cost the same, several graphs have one router.
    """
    hidden = None
    if hidden_weight != 1:
        hidden = router_of(graph, mesh, Weighted(pricing, hidden_weight))
    shared = shared_price(pricing, graph, mesh)
    fused = fused_price(pricing, mesh)
    joined = joined_price(pricing, graph)
    prices = _step_prices(pricing)
    if prices is None or hidden is not None:
        return Router(mesh, pricing.step_cost, turn_price(pricing), shared, fused, hidden, joined)

    key = (mesh, prices, shares(pricing) and (gradient_bytes(graph), _bucket_sizes(graph, mesh)))
    known = _KNOWN.get(key)
    if known is None:
        known = Router(mesh, pricing.step_cost, turn_price(pricing), shared, fused, None, joined)
        _KNOWN[key] = known
    return known


def _step_prices(pricing: Pricing) -> Hashable:
    """Equal where steps cost the same on one mesh, whatever the graph; None: of no other pricing."""
    if isinstance(pricing, Remembered):
        return _step_prices(pricing.pricing)
    if isinstance(pricing, Roofline):
        return type(pricing), pricing.cluster.device, pricing.cluster.topology
    return None


def _bucket_sizes(graph: OpGraph, mesh: DeviceMesh) -> tuple[int, ...]:
    """The sizes of buckets of each kind over all axes of the mesh that there may be."""
    whole_bytes = gradient_bytes(graph)
    every = chain.from_iterable(
        combinations(mesh.names, count) for count in range(len(mesh.names) + 1)
    )
    return tuple(_bucket(kind, axes, whole_bytes, mesh) for axes in every for kind in _CLOSED_AT)


def _bucket(kind: StepKind, axes: tuple[str, ...], whole_bytes: int, mesh: DeviceMesh) -> int:
    """At most what a device has of all gradients that are reduced over these axes."""
    return min(_CLOSED_AT.get(kind, 0), whole_bytes * mesh.product(axes) // mesh.size)


def shared_price(pricing: Pricing, graph: OpGraph, mesh: DeviceMesh) -> StepPrice:
    """What a step of a gradient on `mesh` costs as its share of a bucket, under `pricing`.

        (price(bucket) + beside(bucket)) * size / bucket
        size < bucket = min(what closes a bucket, what a device has of all gradients)

    and price(size) where that is less, for larger steps, and under a pricing that shares nothing (`pricing.Sharing`).
    Where gradients are reduced over some axes, a device is taken to have of them what the other axes leave it: work
    that no axis splits is done more often than it has to be.
    """
    if not shares(pricing):
        return pricing.step_cost

    whole_bytes = gradient_bytes(graph)
    pack = pack_price(pricing)
    per_byte: dict[tuple[StepKind, tuple[str, ...]], float] = {}

    def price(kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        alone = pricing.step_cost(kind, axes, size_bytes)
        bucket = _bucket(kind, axes, whole_bytes, mesh)
        if not 0 < size_bytes < bucket:
            return alone
        if (kind, axes) not in per_byte:
            beside = pack(kind, axes, (bucket // 2, bucket - bucket // 2))
            per_byte[kind, axes] = (pricing.step_cost(kind, axes, bucket) + beside) / bucket
        return min(alone, per_byte[kind, axes] * size_bytes)

    return price


@dataclass(frozen=True, eq=False)
class JoinedPrice:
    """What a step of what waits for nothing (`ready`) costs: a gather its share of those that are joined with it.

        min(price(size), price(full) size / full)
        full = min(most, all gradients), as about as much as of all gradients there is to gather

    `most_bytes` of results the compiler joins into one.
    """

    price: StepPrice
    most_bytes: int
    full_bytes: int
    _full_s: dict[tuple[str, ...], float] = field(default_factory=dict[tuple[str, ...], float])

    def __call__(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """Seconds."""
        alone_s = self.price(kind, axes, size_bytes)
        if kind != "all_gather" or not 0 < size_bytes < self.full_bytes:
            return alone_s
        if axes not in self._full_s:
            self._full_s[axes] = self.price(kind, axes, self.full_bytes)
        return min(alone_s, self._full_s[axes] * size_bytes / self.full_bytes)


def joined_price(pricing: Pricing, graph: OpGraph) -> JoinedPrice | None:
    """The price of gathers that the compiler joins; None where it joins none."""
    most = backend_of(compiler_of(pricing)).joined_gather_bytes
    full = min(most, gradient_bytes(graph))
    return JoinedPrice(pricing.step_cost, most, full) if full and shares(pricing) else None


@once_per_graph
def ready(graph: OpGraph) -> frozenset[int]:
    """The ids of the tensors that wait for nothing: parameters, and what casts and views make of them, in no region."""
    data = set(graph.batch_inputs)
    found = {tensor.id for n, tensor in enumerate(graph.inputs) if n not in data}
    for op in graph.ops:
        is_light = op.region is None and is_cast_or_rearrangement(op)
        if is_light and found.issuperset(t.id for t in op.ins if t.literal is None):
            found.update(tensor.id for tensor in op.outs)
    return frozenset(found)


@once_per_graph
def gradients(graph: OpGraph) -> frozenset[int]:
    """The ids of the tensors that are gradients of parameters, or become one by views, in another type, or by leaving
    loops, and by nothing else.

    A gradient is a tensor of the shape of some input (data left out) that the backward pass or the update makes, and
    that the update or the caller reads.
    """
    found = set(_made(graph))
    for op in reversed([op for op in graph.ops if op.phase != "forward"]):
        passes = is_cast_or_rearrangement(op) or op.kind in LEAVING
        if op.outs and op.outs[0].id in found and passes:
            found.update(tensor.id for tensor in op.ins)
    return frozenset(found)


@once_per_graph
def waiting(graph: OpGraph) -> frozenset[int]:
    """The ids of the gradients that the backward pass makes: nothing but the update needs them reduced.

    What the update makes of them (roots of matrices, say) may be of the same shape, but is made step by step.
    """
    backward = {t.id for op in graph.ops if op.phase == "backward" for t in op.outs}
    return gradients(graph) & backward


@once_per_graph
def gradient_bytes(graph: OpGraph) -> int:
    """The bytes of the gradients that the backward pass leaves, whole."""
    found = _made(graph)
    return sum(
        t.size_bytes for op in graph.ops if op.phase == "backward" for t in op.outs if t.id in found
    )


@once_per_graph
def _made(graph: OpGraph) -> frozenset[int]:
    data = set(graph.batch_inputs)
    shapes = {t.shape for n, t in enumerate(graph.inputs) if n not in data}
    behind = [op for op in graph.ops if op.phase != "forward"]
    read = {t.id for op in behind if op.phase == "update" for t in op.ins} | {
        t.id for t in graph.outputs
    }
    return frozenset(t.id for op in behind for t in op.outs if t.id in read and t.shape in shapes)
