"""Products of groups of rows where rows or groups are split: each device cuts the groups to what it holds."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from autopar._compat import pcast_varying, varying_axes
from autopar.emit.local.shard import Array, LocalOp, Run
from autopar.emit.slicing import slice_at


def ragged_dot_general(local: LocalOp) -> Run:
    """The product of the local rows with the local groups.

    Rows of groups that other devices hold are put into two groups more, before and after the local ones: their
    matrices are zeros (rows kept), or their products are left out (rows summed up). Summed up, only the result is split
    along the groups: its widths vary where neither operand does.
    """
    op = local.op
    params = local.op.params["ragged_dot_dimension_numbers"]
    row: int = params["lhs_ragged_dimensions"][0]
    group: tuple[int, ...] = params["rhs_group_dimensions"]
    summed = row in params["dot_dimension_numbers"][0][0]
    placed = local.strategy
    row_axes = placed.ins[0].dims[row]
    group_axes = placed.ins[1].dims[group[0]] if group else placed.outs[0].dims[0] if summed else ()
    multiply = local.bind()
    if not row_axes and not group_axes:
        return multiply

    def run(lhs: Array, rhs: Array, sizes: Array) -> Sequence[Array]:
        rows = op.ins[0].shape[row]
        starts, ends = _bounds(sizes, rows, local.start(row_axes, rows), lhs.shape[row])
        if not group_axes:
            return multiply(lhs, rhs, ends - starts)

        first = local.start(group_axes, sizes.shape[-1])
        count = sizes.shape[-1] // local.mesh.product(group_axes)
        starts, ends = (slice_at(x, first, count, x.ndim - 1) for x in (starts, ends))
        widths = jnp.concatenate(
            [starts[..., :1], ends - starts, lhs.shape[row] - ends[..., -1:]], axis=-1
        )
        if summed:
            lhs, rhs = (pcast_varying(x, varying_axes(widths)) for x in (lhs, rhs))
            return [multiply(lhs, rhs, widths)[0][1:-1]]

        around = [(int(d in group), int(d in group), 0) for d in range(rhs.ndim)]
        return multiply(lhs, lax.pad(rhs, np.zeros((), rhs.dtype), around), widths)

    return run


def _bounds(sizes: Array, rows: int, first: Array | int, count: int) -> tuple[Array, Array]:
    """Where each group begins and ends among the `count` of all `rows` from row `first` on.

    Sizes are added up in their own type, as JAX does, and only then become signed: a shard may begin behind a group.
    """
    limit = min(rows, int(jnp.iinfo(sizes.dtype).max))
    ends = jnp.clip(jnp.cumsum(sizes, axis=-1, dtype=sizes.dtype), 0, limit).astype(np.int32)
    starts = jnp.concatenate([ends[..., :1] * 0, ends[..., :-1]], axis=-1)
    return jnp.clip(starts - first, 0, count), jnp.clip(ends - first, 0, count)
