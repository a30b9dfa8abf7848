"""Turns: copies that a compiler makes beside an operator, a step or a bucket, or spares, where a profile says so.

All were found on XLA's CPU backend by measuring (8 virtual devices, JAX 0.10.2), and hold there only: they are priced
for devices whose compiler that is and whose profile has a curve for "transpose" ("concatenate" for buckets).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np

from autopar.core.dataflow import uses_of
from autopar.core.graph import OpGraph, OpNode
from autopar.core.memo import once_per_graph
from autopar.core.parcels import LARGE_BYTES, parcels
from autopar.core.placement import StepKind
from autopar.ops.picked import Number
from autopar.redistribute.step import PackPrice, StepPrice, TurnPrice, no_pack, no_turn
from cost_models.compute import Device
from cost_models.curves import Curve, Floats

TURNED: dict[StepKind, float] = {"all_gather": 0.25, "reduce_scatter": 0.06, "all_to_all": 0.35}
"""How much of a step's bytes is transposed where it is along a dim other than the first, as a share of a transpose.

Shards travel whole (`emit.moves`): what is gathered is put in its places run by run, what is scattered is taken apart
by the kernel that makes it; an all_to_all turns what arrives, or is sent, in part within the kernels around it.
Measured between two kernels, less the same along the first dim, against transposes of as many elements, on each of 8
devices in groups of 2, 4 and 8: all_gather and reduce_scatter on eleven shapes of two to four dims, 192 KiB to 4 MiB,
in runs of 8 bytes to 64 KiB, 2026-11-25: all_gather 0 to 0.6 (median 0.2; 0.25 of those whose runs are under 4 KiB),
reduce_scatter 0 to 0.5 (0.06); all_to_all on four matrices, 2026-11-22: 0.1 to 0.5 (0.35).
"""


PAGE_BYTES = 4096
"""What addresses are apart that lie in one set of a processor's first cache."""
PAGES = "pack:pages"


def copying(device: Device, kinds: tuple[str, ...], dtype: str) -> Curve | None:
    """Seconds by the elements that a kernel copies, for the first of `kinds` ("transpose", ...) that is known.

    None where the profile does not say.
    """
    if device.efficiency is None:
        return None
    known = next(
        (device.efficiency.work[kind] for kind in kinds if kind in device.efficiency.work), None
    )
    return None if known is None else known.get(dtype, known["float32"])


def step_turn_price(device: Device) -> TurnPrice:
    """`step_turn_time_s` on `device`; `no_turn` where that is nothing."""
    known = copying(device, ("transpose",), "float32")
    return no_turn if known is None else partial(step_turn_time_s, device=device)


def step_turn_time_s(kind: StepKind, size_bytes: int, device: Device) -> float:
    """Seconds of what a device copies beside a step of `size_bytes` along a dim other than the first."""
    curve = copying(device, ("transpose",), "float32")
    return 0.0 if curve is None else TURNED.get(kind, 0.0) * curve.time_s(size_bytes / 4)


def bucket_pack_price(device: Device, price: StepPrice) -> PackPrice:
    """`bucket_pack_time_s` on `device`, where collectives cost `price`; `no_pack` where that is nothing."""
    known = copying(device, ("concatenate",), "float32")
    return no_pack if known is None else partial(bucket_pack_time_s, known, price)


def bucket_pack_time_s(
    curve: Curve, price: StepPrice, kind: StepKind, axes: tuple[str, ...], sizes: Sequence[int]
) -> float:
    """Seconds in which a device lays the tensors of a bucket end to end, by the elements that `curve` copies.

    All-reduces of large tensors are joined instead (`core.parcels`): each parcel but one takes a latency more.
    """
    found = parcels(sizes, LARGE_BYTES if kind == "all_reduce" else None)
    laid = sum(sizes[n] for parcel in found if len(parcel) > 1 for n in parcel)
    return curve.time_s(laid / 4) + (len(found) - 1) * price(kind, axes, 4)


@once_per_graph
def folded(graph: OpGraph) -> frozenset[int]:
    """The ids of the transposes that are the only use of a product of matrices and turn each of them, as in gradients.

    (lhs . rhs)^T is rhs^T . lhs^T, and so the compiler computes it, if nothing comes between: what the product leaves
    unreduced is reduced behind the transpose. Batch dims, whose products are of matrices each, stay where they are;
    with several dims that are neither batched nor contracted in an operand the transpose is a copy.
    """
    uses = uses_of(graph)
    found: set[int] = set()
    for op in graph.ops:
        if (
            op.kind == "dot_general"
            and op.outs[0].ndim == len(op.params["dimension_numbers"][1][0]) + 2
        ):
            mine = [
                None if use.op is None else graph.ops[use.op] for use in uses.get(op.outs[0].id, ())
            ]
            if len(mine) == 1 and mine[0] is not None and _turns_matrices(mine[0]):
                found.add(mine[0].id)

    return frozenset(found)


def _turns_matrices(op: OpNode) -> bool:
    """Whether `op` swaps the last two dims and nothing else."""
    last = op.ins[0].ndim - 1 if op.ins else 0
    return op.kind == "transpose" and tuple(op.params["permutation"]) == (
        *range(last - 1),
        last,
        last - 1,
    )


@once_per_graph
def turned_products(graph: OpGraph) -> frozenset[int]:
    """The ids of the products that are computed the other way round (`folded`): their right operand comes first."""
    return frozenset(graph.producers[graph.ops[turn].ins[0].id].id for turn in folded(graph))


def reads_across(op: OpNode, first: int) -> bool:
    """Whether a product of matrices reads its first operand across: what is contracted is not the last dim of that.

    A kernel packs such an operand in another order before it multiplies, as if it were transposed: lhs[k, m] .
    rhs[k, n] takes longer than lhs[m, k] . rhs[k, n] by 1 ns for each element of the left one (512x512 by 512x64: 58
    Gflop/s for 205). Where rows are whole pages apart, all lie in one set of the cache: 2.2 ns (1024 or 2048 columns
    of float32; 1.0 of 768). Priced as work of kind "pack" or "pack:pages" where the profile has it, else as a
    transpose.
    """
    if op.kind != "dot_general":
        return False
    contracted: tuple[int, ...] = op.params["dimension_numbers"][0][first]
    return bool(contracted) and max(contracted) < op.ins[first].ndim - 1


def regroups(op: OpNode, operand: int) -> bool:
    """Whether an operand of a product of matrices has batch dims that are not its first ones, as heads of attention.

    The compiler puts them in front before it multiplies: q[b, q, h, d] . k[b, k, h, d] by the batch dims b and h takes
    half as long again (2x128x8x32: 1.80 ms for 1.20), what q and k take to be transposed by rows.
    """
    if op.kind != "dot_general":
        return False
    batch: tuple[int, ...] = op.params["dimension_numbers"][1][operand]
    return sorted(batch) != list(range(len(batch)))


def product_turns_s(
    op: OpNode,
    elements: tuple[Number, Number, Number],
    flops: Number,
    device: Device,
    *,
    turned: bool = False,
) -> Number:
    """Seconds in which operands are put in order beside a product: see `reads_across`, `regroups`.

    Args:
      op: any operator.
      elements: those of its operands and of its result that a device holds.
      flops: 2 b m n k of these.
      device: the device.
      turned: whether it is computed the other way round (`turned_products`).
    """
    first = int(turned)
    total: float | Floats = elements[0] * 0.0
    for operand, count in enumerate(elements[:2]):
        if regroups(op, operand):
            total = total + _copying_time_s(
                ("transpose:rows", "transpose"), count, op.ins[0].dtype, device
            )
        elif operand == first and reads_across(op, first):
            columns = flops / 2.0 / np.maximum(elements[1 - first], 1.0)
            total = total + _packing_s(
                count, columns * op.ins[first].itemsize, op.ins[first].dtype, device
            )

    return cast(Number, total)


def _packing_s(
    elements: float | Floats, row_bytes: float | Floats, dtype: str, device: Device
) -> float | Floats:
    plain = _copying_time_s(("pack", "transpose"), elements, dtype, device)
    in_pages = _copying_time_s((PAGES, "pack", "transpose"), elements, dtype, device)
    found = np.where(np.asarray(row_bytes) % PAGE_BYTES == 0, in_pages, plain)
    return found if isinstance(elements, np.ndarray) else float(found)


def _copying_time_s(
    kinds: tuple[str, ...], elements: float | Floats, dtype: str, device: Device
) -> float | Floats:
    curve = copying(device, kinds, dtype)
    if curve is None:
        return elements * 0.0
    return curve.times_s(elements) if isinstance(elements, np.ndarray) else curve.time_s(elements)
