"""Kernels of Pallas on fewer blocks: a device goes through those that it holds, by the same index maps."""

from __future__ import annotations

from typing import cast

from autopar._compat import kernel_on_blocks
from autopar.core.blocks import Blocks
from autopar.emit.local.shard import LocalOp, Run


def pallas_kernel(local: LocalOp) -> Run:
    """The kernel with a grid of as many points along each axis as pick blocks that are here."""
    blocks = cast("Blocks", local.op.params["blocks"])
    placed = [*local.strategy.ins[blocks.leading :], *local.strategy.outs]
    grid = list(local.payload.params["grid_mapping"].grid)
    for placement, dims in zip(placed, blocks.arrays, strict=True):
        for axes, picked in zip(placement.dims, dims, strict=True):
            if picked is not None and picked.shared == 1:
                grid[picked.axis] = blocks.grid[picked.axis] // local.mesh.product(axes)

    shapes = [
        *(local.in_shape(n) for n in range(blocks.leading, len(local.op.ins))),
        *(local.out_shape(n) for n in range(len(local.op.outs))),
    ]
    return local.bind(
        **kernel_on_blocks(local.payload.params, grid, shapes, 1 / local.strategy.split)
    )
