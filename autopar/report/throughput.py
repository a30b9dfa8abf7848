"""Throughput: how many rows or tokens a step takes in, and the products of matrices that it is made for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autopar.core.graph import OpGraph, OpNode
from autopar.core.memo import once_per_graph
from autopar.core.mesh import DeviceMesh
from autopar.ops.traits import work_flops
from autopar.report.layout import is_product
from autopar.search.dims import labels_of_data
from autopar.search.resolve import FindRule
from cost_models import Cluster
from cost_models.compute import peak_flops_per_s

_AGAIN = "rematted_computation"
"""The scope of what a checkpoint of the user computes once more."""


@dataclass(frozen=True)
class Throughput:
    """What goes into a step: `rows` of data, `tokens` in them (0 where the data is no sequence of whole numbers).

    `product_flops` are the operations of all products of matrices in a step, on all devices, without what is computed
    once more or on padding; `ideal_time_s` is what they take with every device at the peak of the element type.
    """

    rows: int = 0
    tokens: int = 0
    product_flops: float = 0.0
    ideal_time_s: float = 0.0


def throughput(
    graph: OpGraph, mesh: DeviceMesh, find: FindRule, cluster: Cluster | None
) -> Throughput:
    """What goes into a step of `graph`; without a `cluster` nothing is known of peaks."""
    rows = graph.inputs[graph.batch_inputs[0]].shape[0] if graph.batch_inputs else 0
    products = _all_products(graph)
    ideal_s = 0.0
    if cluster is not None:
        ideal_s = sum(
            flops / peak_flops_per_s(cluster.device, op.ins[0].dtype) for op, flops in products
        )
    return Throughput(
        rows, _tokens(graph, find), sum(flops for _, flops in products), ideal_s / mesh.size
    )


@once_per_graph
def _tokens(graph: OpGraph, find: FindRule) -> int:
    """The tokens of a step: of data of whole numbers, as many of each row as products have places.

    A loss that predicts the next token leaves one out.
    """
    texts = [
        graph.inputs[position]
        for position in graph.batch_inputs
        if graph.inputs[position].ndim == 2
        and graph.inputs[position].dtype.startswith(("int", "uint"))
    ]
    if not texts:
        return 0

    rows, length = texts[0].shape
    labels = labels_of_data(graph, find)
    places = {
        tensor.shape[dim]
        for op in graph.ops
        if op.phase == "forward" and is_product(op)
        for tensor in op.outs
        for dim, label in enumerate(labels.get(tensor.id, ()))
        if label == ("sequence",)
    }
    return rows * max((n for n in places if n <= length), default=length)


@once_per_graph
def _all_products(graph: OpGraph) -> tuple[tuple[OpNode, float], ...]:
    return tuple(_products(graph))


def _products(graph: OpGraph) -> Iterator[tuple[OpNode, float]]:
    """The products of a step and the operations of each; of stages without those of ticks with nothing to do."""
    for op in graph.ops:
        if _AGAIN in op.scope or op.recomputes is not None:
            continue
        runs = graph.tree.weight(op.region) * (1 - op.added)
        if graph.stages is not None and _ticks(graph, op):
            runs *= 1 - graph.stages.bubble
        if op.body is not None:
            yield from ((one, runs * flops) for one, flops in _products(op.body))
        elif is_product(op):
            yield op, runs * work_flops(op)


def _ticks(graph: OpGraph, op: OpNode) -> bool:
    """Whether an operator runs once for every tick of the stages."""
    assert graph.stages is not None
    around = map(graph.tree.__getitem__, graph.tree.path(op.region))
    return any(region.trips == graph.stages.ticks for region in around)
