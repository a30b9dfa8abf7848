"""By hand: the strategies of operators in a shard_map of the user's, and of its borders.

Along the manual axes nothing is chosen; along the others an operator has the strategies it has elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from autopar.core.graph import OpNode
from autopar.core.manual import COLLECTIVES, ENTER, manual_axes
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Exchange, Hop, Strategy


def strategies_by_hand(op: OpNode, mesh: DeviceMesh, free: Sequence[Strategy]) -> tuple[Strategy, ...]:
    """Those of `free` that leave the manual axes alone; with what the user's own collective sends."""
    manual = manual_axes(op)
    found = [strategy for strategy in free if manual.isdisjoint(_axes(strategy))]
    if op.kind in COLLECTIVES:
        found = [replace(strategy, exchanges=_exchanges(op, mesh, strategy)) for strategy in found]
    return tuple(found)


def border_strategies(op: OpNode, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    """The shard along the border's own axes, in every placement along those that are not manual on either side.

    The dims of the whole are split by the user's axes first, within a shard by the others.
    """
    (outer,) = op.params["ins"] if op.kind == ENTER else op.params["outs"]
    whole, shard = (op.ins[0], op.outs[0]) if op.kind == ENTER else (op.outs[0], op.ins[0])
    own = Placement(tuple(axes or () for axes in outer))
    left = [axis for axis in mesh.names if axis not in shard.manual and mesh.product((axis,)) > 1]
    found: list[Strategy] = []
    for dims in product(range(-1, shard.ndim), repeat=len(left)):
        inner = tuple(tuple(a for a, d in zip(left, dims, strict=True) if d == dim) for dim in range(shard.ndim))
        inside, outside = Placement(inner), Placement(tuple(a + b for a, b in zip(own.dims, inner, strict=True)))
        if inside.fits(shard.shape, mesh) and outside.fits(whole.shape, mesh):
            ends = (outside, inside) if op.kind == ENTER else (inside, outside)
            found.append(Strategy((ends[0],), (ends[1],), (), mesh.product(outside.split_axes)))
    return tuple(found)


def _axes(strategy: Strategy) -> set[str]:
    placed = {axis for placement in (*strategy.ins, *strategy.outs) for axis in placement.varying_axes}
    return placed | {axis for exchange in strategy.exchanges for axis in exchange.axes}


def _exchanges(op: OpNode, mesh: DeviceMesh, strategy: Strategy) -> tuple[Exchange, ...]:
    axes = tuple(axis for axis in mesh.names if axis in op.params["axes"])
    if not axes:
        return ()
    kind = COLLECTIVES[op.kind]
    sides = (op.ins[0], strategy.ins[0]), (op.outs[0], strategy.outs[0])
    size = max(placement.local_size(tensor.shape, mesh) * tensor.itemsize for tensor, placement in sides)
    hop = Hop(0, "stated", op.params["pairs"]) if kind == "permute" else None  # JAX counts in mesh order
    return (Exchange(kind, axes, size, 0, hop),)
