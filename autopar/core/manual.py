"""Manual axes: the part of a function that its user split by hand, with `jax.shard_map`.

In there a tensor stands for one value at each position along the manual axes, of the shape that one device sees
(`TensorInfo.manual`). Nothing is searched along these axes; along the others everything is as elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autopar.core.placement import StepKind

if TYPE_CHECKING:
    from autopar.core.graph import OpNode

ENTER = "enter_manual"
LEAVE = "leave_manual"
BORDERS = frozenset({ENTER, LEAVE})
"""Identities at the borders: a whole tensor's shard in, a shard of a whole tensor out, as the user's specs say."""

COLLECTIVES: dict[str, StepKind] = {
    "manual_all_gather": "all_gather",
    "manual_all_reduce": "all_reduce",
    "manual_all_to_all": "all_to_all",
    "manual_permute": "permute",
    "manual_reduce_scatter": "reduce_scatter",
}
"""The user's own collectives. Parameters: `axes`, their names, major to minor; `dims`, those that change, first of the
operand, then of the result; `pairs` (from, to) of a permute; `primitive`, what JAX calls it."""

INDEX = "manual_index"
"""The position of a device along `axes`."""

KINDS = frozenset({*BORDERS, INDEX, *COLLECTIVES})


def manual_axes(op: OpNode) -> frozenset[str]:
    """The axes that are manual where `op` stands; those on both sides of a border."""
    return frozenset(
        [axis for side in (op.ins, op.outs) for tensor in side for axis in tensor.manual]
    )
