"""localize: an operator and its strategy in, the function that one device runs on its shards out.

Most operators run as they are. Those whose parameters name global shapes get local ones, and those that count or
look up elements are told where their shard begins; those that look beyond their shard are sent what they need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from autopar._compat import (
    as_keys,
    key_data,
    open_jaxpr,
    pcast_varying,
    row_major,
    single,
    untyped_jax,
    varying_axes_of,
    with_shape,
)
from autopar.backends.backend import Backend
from autopar.backends.known import UNKNOWN
from autopar.core.graph import OpNode
from autopar.core.manual import BORDERS
from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Strategy
from autopar.emit.exchange import Exchanger, InShardMap
from autopar.emit.local import blocks
from autopar.emit.local.attention import attention_backward, attention_forward
from autopar.emit.local.counters import iota, iota_2x32_shape, rng_bit_generator
from autopar.emit.local.dynamic import dynamic_slice, dynamic_update_slice
from autopar.emit.local.fourier import fft
from autopar.emit.local.indexing import gather, scatter
from autopar.emit.local.kernels import pallas_kernel
from autopar.emit.local.moving import dynamic_roll, join, pad, rev, roll, slice_
from autopar.emit.local.products import dot_general
from autopar.emit.local.ragged import ragged_dot_general
from autopar.emit.local.ranking import arg_extremum, cumulative, top_k
from autopar.emit.local.rounds import scan_first, scan_last, scan_start
from autopar.emit.local.shard import Array, LocalOp, OffsetOf, Run
from autopar.emit.local.sorting import sort
from autopar.emit.local.windows import (
    conv_general_dilated,
    reduce_window,
    select_and_gather_add,
    select_and_scatter_add,
)


def axis_offset(axes: tuple[str, ...]) -> Any:
    """The device's position along `axes`, major to minor, inside shard_map."""
    return lax.axis_index(axes)


def localize(
    op: OpNode,
    strategy: Strategy,
    mesh: DeviceMesh,
    offset_of: OffsetOf = axis_offset,
    exchanger: Exchanger | None = None,
    *,
    backend: Backend = UNKNOWN,
    interleaved: bool = False,
) -> Run:
    """The function from the local operands of `op` (in the order of `op.ins`) to its local results.

    Operands must vary over the same mesh axes, and over all that their placements name. An unreduced operand holds
    its device's part of the value. A result varies over the axes of its operands and of the offsets that it needs:
    a dim that the operator makes by repetition (broadcast_in_dim, tile) is split without varying.

    Args:
      op: an operator whose payload is a `Payload`.
      strategy: one of its strategies on `mesh`.
      mesh: the device mesh.
      offset_of: the device's position along mesh axes, major to minor; by default read inside shard_map.
      exchanger: what runs the strategy's exchanges; by default collectives inside shard_map.
      backend: what compiles it.
      interleaved: a shard is every nth element; for operators that number elements, and those without offsets.

    Raises:
      TypeError: if the operator holds no primitive.
    """
    local = LocalOp(
        op, strategy, mesh, offset_of, exchanger or InShardMap(mesh), backend, interleaved
    )
    return _LOCALISERS[op.kind](local) if op.kind in _LOCALISERS else local.bind()


def _reshape(local: LocalOp) -> Run:
    return local.bind(new_sizes=local.out_shape())


def _transpose(local: LocalOp) -> Run:
    """Without the dims of one element, of which a shard may have more than its tensor.

    XLA computes a product whose last two dims are swapped the other way round, but sees none (jax 0.10.2) where the
    product has a batch dim of one element, as gradients of weights in pipeline stages do.
    """
    shape = local.in_shape(0)
    order: Sequence[int] = [d for d in local.op.params["permutation"] if shape[d] != 1]
    if len(order) == len(shape):
        return local.bind()
    dims = sorted(order)
    places = [dims.index(d) for d in order]
    sizes = [shape[d] for d in dims]

    def run(operand: Array) -> Sequence[Array]:
        return [lax.transpose(operand.reshape(sizes), places).reshape(local.out_shape())]

    return run


def _made(local: LocalOp) -> Run:
    return local.bind(shape=local.out_shape())


def _tile(local: LocalOp) -> Run:
    dims = zip(local.out_shape(), local.in_shape(0), local.op.params["reps"], strict=True)
    return local.bind(reps=tuple(size // part if part else count for size, part, count in dims))


def _shard_map(local: LocalOp) -> Run:
    """The body of a shard_map in the user's function, which runs inside of this one as it is; keys are held as data.

    Its operands vary over axes of one device too, where its specs name these; so do its results, but none of what
    comes after.
    """
    jaxpr, constants = open_jaxpr(local.payload.params["jaxpr"])
    avals = [var.aval for var in jaxpr.invars]
    ones = set(local.mesh.whole.names) - set(local.mesh.names)

    def run(*operands: Array) -> Sequence[Array]:
        cast = [
            pcast_varying(value, varying_axes_of(aval))
            for value, aval in zip(operands, avals, strict=True)
        ]
        typed = [as_keys(value, aval) for value, aval in zip(cast, avals, strict=True)]
        results = untyped_jax.core.eval_jaxpr(jaxpr, constants, *typed)
        return [single(key_data(value), ones) for value in results]

    return run


_lax: Any = lax
_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "psum": _lax.reduce_sum,
    "pmax": _lax.reduce_max,
    "pmin": _lax.reduce_min,
}


def _reduce_over_axis(local: LocalOp) -> Run:
    """A collective over dims by number is a plain reduction: inside shard_map it would be taken for a collective.

    Over an axis that has a name still it runs as it is.
    """
    axes = local.op.params["axes"]
    if (
        any(isinstance(axis, str) for axis in axes)
        or local.op.params.get("axis_index_groups") is not None
    ):
        return local.bind()
    reduce = _REDUCTIONS[local.op.kind]

    def run(*operands: Array) -> Sequence[Array]:
        return [reduce(operand, axes) for operand in operands]

    return run


def _foreign(local: LocalOp) -> Run:
    """A call of the host or of foreign code, told the shapes that it is to give back for these shards.

    What it calls booleans are bytes in the graph where such a call may be made once (`trace.walk`).
    """
    shapes = [local.out_shape(n) for n in range(len(local.op.outs))]
    avals = local.payload.params["result_avals"]
    run = local.bind(result_avals=tuple(map(with_shape, avals, shapes)))

    def called(*operands: Array) -> Sequence[Array]:
        return [
            result.astype(out.dtype)
            for result, out in zip(run(*operands), local.op.outs, strict=True)
        ]

    return called


def _put(local: LocalOp) -> Run:
    """A value that is to be put on devices is on them already, in their memory or in that of their host."""
    if not local.op.crosses_memories:
        return _identity(local)
    space = (
        untyped_jax.memory.Space.Host
        if local.op.outs[0].on_host
        else untyped_jax.memory.Space.Device
    )

    def run(operand: Array) -> Sequence[Array]:
        return (untyped_jax.device_put(operand, space),)

    return run


def _identity(local: LocalOp) -> Run:
    """A value that is placed as it is to be."""
    del local

    def run(*operands: Array) -> Sequence[Array]:
        return operands

    return run


def _all_to_all(local: LocalOp) -> Run:
    """As it is; its operand by rows, where the compiler wants that."""
    run = local.bind()
    return run if not local.backend.wants_rows else lambda *operands: run(*map(row_major, operands))


_LOCALISERS: dict[str, Callable[[LocalOp], Run]] = {
    "attention": blocks.attention,
    "attention.vjp": blocks.attention_vjp,
    "conv_general_dilated": conv_general_dilated,
    "dot_general": dot_general,
    "dot_product_attention_bwd": attention_backward,
    "dot_product_attention_fwd": attention_forward,
    "dynamic_roll": dynamic_roll,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "fft": fft,
    "gather": gather,
    "iota": iota,
    "manual_all_to_all": _all_to_all,
    "iota_2x32_shape": iota_2x32_shape,
    "pad": pad,
    "pallas_kernel": pallas_kernel,
    "ragged_dot_general": ragged_dot_general,
    "reshape": _reshape,
    "rev": rev,
    "rng_bit_generator": rng_bit_generator,
    "roll": roll,
    "scan_first": scan_first,
    "scan_last": scan_last,
    "scan_start": scan_start,
    "scatter": scatter,
    "select_and_gather_add": select_and_gather_add,
    "select_and_scatter_add": select_and_scatter_add,
    "shard_map": _shard_map,
    "slice": slice_,
    "sort": sort,
    "tile": _tile,
    "top_k": top_k,
    "transpose": _transpose,
    **dict.fromkeys(("argmax", "argmin"), arg_extremum),
    **dict.fromkeys(("broadcast_in_dim", "empty"), _made),
    **dict.fromkeys(("concatenate", "splice"), join),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), cumulative),
    "device_put": _put,
    **dict.fromkeys(("reshard", "sharding_constraint", *BORDERS), _identity),
    **dict.fromkeys(("ffi_call", "pure_callback"), _foreign),
    **dict.fromkeys(("pmax", "pmin", "psum"), _reduce_over_axis),
    **dict.fromkeys(
        ("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"),
        reduce_window,
    ),
    **dict.fromkeys(
        ("scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub"), scatter
    ),
}
