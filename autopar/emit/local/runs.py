"""Gathers and scatters of runs of places in a split dim, as gathers and scatters of every place alone.

A run may lie across the border between two shards, a place cannot. The places of a run stand behind the batch of
indices: indices[b..., c] become indices[b..., t..., c'], with a component c' for every dim that has runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autopar._compat import untyped_jax
from autopar._payload import Payload
from autopar.core.graph import TensorInfo
from autopar.core.placement import Placement
from autopar.emit.local.shard import Array, LocalOp

lax = untyped_jax.lax
jnp = untyped_jax.numpy
Ints = tuple[int, ...]


@dataclass(frozen=True)
class SlicedRuns:
    """The dims of an operand of which a slice holds a run of places, and how slices lie on the operand.

    `widths` is a slice's size in every dim, `dims` are those that the components of an index refer to. `windows` are
    the dims that a slice has, in order, and `at` where they stand in the tensor of slices.
    """

    runs: Ints
    widths: Ints
    dims: Ints
    windows: Ints
    at: Ints

    @classmethod
    def of(
        cls, local: LocalOp, widths: Sequence[int], dims: Ints, single: Ints, batch: Ints, at: Ints
    ) -> SlicedRuns:
        """Those of an operator: split dims of which slices hold several places but not all, or always the first.

        Slices have neither the `single` dims nor those of the `batch`; what else they have stands in them as `at` says.
        """
        shape = local.op.ins[0].shape
        placement = local.strategy.ins[0]
        sizes = enumerate(zip(shape, widths, placement.dims, strict=True))
        split = [
            (d, width)
            for d, (size, width, axes) in sizes
            if axes and width < size and d not in batch
        ]
        runs = tuple(d for d, width in split if width > 1 or d not in dims)
        windows = tuple(d for d in range(len(shape)) if d not in (*single, *batch))
        return cls(runs, tuple(widths), dims, windows, at)

    @property
    def components(self) -> Ints:
        """The dims that the components of a place's index refer to."""
        return (*self.dims, *(d for d in self.runs if d not in self.dims))

    @property
    def rest(self) -> Ints:
        """The dims that a place's slice has."""
        return tuple(d for d in self.windows if d not in self.runs)

    def order(self, ndim: int) -> Ints:
        """For each dim of the slices of places (batch, places, rest) which of the `ndim` of slices of runs it is."""
        at = dict(zip(self.windows, self.at, strict=True))
        batch = [e for e in range(ndim) if e not in self.at]
        return (*batch, *(at[d] for d in self.runs), *(at[d] for d in self.rest))

    def places(self, indices: Array, shape: Ints, *, clips: bool) -> Array:
        """The index of every place: runs are moved into the tensor, or of those partly outside no place is in it."""
        dtype = np.dtype(np.int64 if indices.dtype.itemsize == 8 else np.int32)
        missing = len(self.components) - len(self.dims)
        zeros = jnp.zeros((*indices.shape[:-1], missing), dtype)
        found = lax.concatenate([indices.astype(dtype), zeros], indices.ndim - 1)
        bounds = np.asarray([shape[d] - self.widths[d] for d in self.components], dtype)
        inside = ((found >= 0) & (found <= bounds)).all(axis=-1, keepdims=True)
        found = (
            jnp.clip(found, 0, bounds) if clips else jnp.where(inside, found, -1 - max(self.widths))
        )
        batch = found.ndim - 1
        found = jnp.expand_dims(found, tuple(range(batch, batch + len(self.runs))))
        for n, run in enumerate(self.runs):
            along = [-1 if e == batch + n else 1 for e in range(found.ndim)]
            mine = np.asarray([d == run for d in self.components], dtype)
            found = found + lax.iota(dtype, self.widths[run]).reshape(along) * mine

        return found


def on_places(
    local: LocalOp, runs: SlicedRuns, params: dict[str, Any], indices: int, slices: int
) -> LocalOp:
    """The operator on places: its `params` are those of the primitive that differ.

    Args:
      local: the operator on runs.
      runs: what its slices are.
      params: with plain data under the name "dimension_numbers" and JAX's own under "numbers".
      indices: the operand that the indices are.
      slices: which of operands and results the slices are.
    """
    op = local.op
    strategy = local.strategy
    tensors = [*op.ins, *op.outs]
    placed = [*strategy.ins, *strategy.outs]
    widths = tuple(runs.widths[d] for d in runs.runs)
    batch = tensors[indices].shape[:-1]
    order = runs.order(tensors[slices].ndim)
    tensors[indices] = _reshaped(tensors[indices], (*batch, *widths, len(runs.components)))
    placed[indices] = Placement((*placed[indices].dims[:-1], *((),) * (len(widths) + 1)))
    tensors[slices] = _reshaped(tensors[slices], tuple(tensors[slices].shape[e] for e in order))
    placed[slices] = replace(placed[slices], dims=tuple(placed[slices].dims[e] for e in order))
    numbers = params.pop("numbers")
    payload = local.payload.params | params | {"dimension_numbers": numbers}
    payload |= {"indices_are_sorted": False, "unique_indices": False}
    count = len(op.ins)
    places = replace(
        op,
        ins=tuple(tensors[:count]),
        outs=tuple(tensors[count:]),
        params=dict(op.params) | params,
        payload=Payload(local.payload.primitive, payload),
    )

    return replace(
        local,
        op=places,
        strategy=replace(strategy, ins=tuple(placed[:count]), outs=tuple(placed[count:])),
    )


def _reshaped(tensor: TensorInfo, shape: Ints) -> TensorInfo:
    return replace(tensor, shape=shape)
