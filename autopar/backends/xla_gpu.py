"""XlaGpu: XLA's compiler for GPUs, as far as its own programs for H100s say (JAX 0.10.2, `benchmarks.gpu_aot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from autopar.backends.backend import Backend
from autopar.backends.xla_cpu.loops import copied
from autopar.core.dataflow import uses_of
from autopar.core.graph import OpGraph, OpNode
from autopar.core.placement import StepKind
from autopar.core.program import Compute, ShardedProgram
from autopar.ops.before_loops import made_before
from autopar.ops.fusion import Fusing
from autopar.ops.holding import Holding
from autopar.ops.odd_products import (
    Shares,
    longer,
    most_padded_bytes,
    multiple_of,
    padded_bytes,
    padding_shares,
)
from autopar.ops.picked import Number
from autopar.ops.ragged_products import RAGGED, group_count, group_of
from autopar.ops.traits import traits_of
from autopar.redistribute.step import TurnPrice
from cost_models.compute import Device, moving_time_s

ROW_ELEMENTS = 2**14
"""Rows up to this length are read once by the Triton kernel that reduces them and writes what is made of them.

Softmax and layer norm of 2^28 elements, bfloat16 and float32, in rows of 2048, 8192 and 16384: one kernel, 2.0 passes;
in rows of 32768 and 65536 each reduction reads them once more: 4.2 passes.
"""
TURNED_STEPS: frozenset[StepKind] = frozenset(("all_gather", "reduce_scatter", "all_to_all"))
"""Steps that NCCL does along the dim that lies first in memory; along others an array is copied in another order."""

DEAR = (
    ("expm1", 18.6),
    ("log", 12.4),
    ("log1p", 12.9),
    ("tanh", 9.6),
    ("sin", 33.5),
    ("cos", 33.5),
    ("pow", 47.9),
)
"""The bytes that an H100 moves while it computes one element of float32, by XLA's own times of both. Its fusion weighs
these: a GELU of bfloat16 writes its tanh beside its result, and the backward pass reads it. exp and logistic take half
as long (4.3, 4.8): the exp of a softmax and the logistic of a SiLU are computed in each kernel, in bfloat16 too.
"""
CACHES = ((2**18 + 2**13, 0.05), (50 * 2**20, 0.4))
"""What the compiler counts for what a kernel reads again, such as a vector that it subtracts from each column: the L1
caches of 132 processors, 2 KiB each, read 20 times as fast as memory, the L2 cache 2.5 times. A product of 2^26 floats
with one value for every row takes 164.2 us where these are 2^16, 192.4 where 2^18 to 2^20, and 240 where 2^24.
"""
FUSING = Fusing(
    row_elements=ROW_ELEMENTS,
    anew=True,
    dear=DEAR,
    into_products=True,
    caches=CACHES,
    moving=frozenset(("concatenate",)),
    borders=True,
)
HOLDING = Holding(
    gradients_late=True,
    reduces_in_place=True,
    widens_operands=True,
    joins_equal=True,
    results_lend=True,
    zeros_first=True,
)
POOLING = "select_and_scatter_add"
"""The gradient of max pooling is three kernels. One finds in every window the largest and where it is, an index a dim.
One writes zeros. One reads the indices and adds the gradients to them there, for which it reads and writes all. Of
2^20 windows in 2^22 elements of bfloat16 and four dims they take 8.9, 2.5 and 10.6 us; operands and result move in 5.6.
"""
INDEX_BYTES = 4
RAGGED_PASSES = 4.0
"""A product of ragged groups is one of all rows with the matrices of all groups: a kernel writes the rows once for each
group, with zeros for those of the others, a second turns these, and the product contracts groups too. With 8 groups of
32768 rows of 4096, bfloat16, that is 1.3 ms twice and 5.1 of the product; one of these rows with one matrix takes 0.63.
"""
JOINED_GATHER_BYTES = 30 * 2**20
"""Of results: gathers over the same devices, whatever their types (`AllGatherCombiner`). Of the 30 of a ViT of 2 layers
under FSDP it makes 4, which take 0.4 ms for 1.6.
"""
CUBLAS_BYTES = 4 * 2**20
"""The workspace that each call of cuBLAS is given; the next call is given the same."""


@dataclass(frozen=True)
class XlaGpu(Backend):
    """XLA's compiler for GPUs.

    It joins all-reduces itself, into one of several operands, without laying them end to end. Operands of products
    whose batch dims are not the first ones are copied in another order, as in attention, and one of a narrower type
    than the other is written in that first. Its scheduler, which hides latencies, lets gradients of activations, and
    what waits for them, go before those of weights.
    """

    name: str = "xla_gpu"
    apart_bytes: int | None = 0
    scatters_apart: bool = False
    joined_gather_bytes: int = JOINED_GATHER_BYTES
    holding: Holding = HOLDING
    several: frozenset[str] = frozenset((POOLING, RAGGED))
    fusing: Fusing = FUSING
    counting: Fusing = FUSING

    def copied(self, graph: OpGraph) -> frozenset[int]:
        """See `Backend.copied`: as on CPUs, and slices that a rematerialised block reads: its barrier wants arrays."""
        return copied(graph) | _before_barriers(graph)

    def product_turns_s(
        self,
        op: OpNode,
        elements: tuple[Number, Number, Number],
        flops: Number,
        device: Device,
        *,
        turned: bool,
        padding: Shares = (0.0, 0.0),
    ) -> Number:
        """See `Backend.product_turns_s`."""
        del turned
        total = flops * 0.0
        widest = max(tensor.itemsize for tensor in op.ins[:2])
        for operand, (count, tensor) in enumerate(zip(elements[:2], op.ins, strict=False)):
            if regroups(op, operand) or tensor.itemsize < widest:
                moved = count * float(tensor.itemsize + widest)
                total = total + moved * moving_time_s(1.0, device) + device.launch_s

        times = longer(elements, flops, multiple_of(op)) if any(padding) else ()
        for count, share, longest in zip(elements, padding, times, strict=False):
            moved = count * float(op.ins[0].itemsize) * (1.0 + longest)
            taken = moved * moving_time_s(1.0, device) + device.launch_s
            total = total + share * taken * (longest > 1.0)
        return cast(Number, total)

    def before_loops(self, program: ShardedProgram) -> Mapping[int, tuple[tuple[int, ...], ...]]:
        """See `ops.before_loops`: gradients that would wait for the loop, and what enters it."""
        found: dict[int, tuple[tuple[int, ...], ...]] = {}
        for region, awaited in made_before(program).items():
            together: dict[int, list[int]] = {}
            for one in awaited:
                together.setdefault(one.carry, []).append(one.value)
            found[region] = tuple((*values, carry) for carry, values in together.items())
        return found

    def shared_workspace_bytes(self, program: ShardedProgram) -> int:
        """See `Backend.shared_workspace_bytes`."""
        computes = [i.op.kind for i in program.instructions if isinstance(i, Compute)]
        return CUBLAS_BYTES if any(traits_of(kind).is_contraction for kind in computes) else 0

    def padding_shares(self, graph: OpGraph) -> Mapping[int, Shares]:
        """See `ops.odd_products`."""
        return padding_shares(graph, self.fusing)

    def workspace_bytes(
        self, op: OpNode, in_bytes: Sequence[int], in_shapes: Sequence[Sequence[int]]
    ) -> int:
        """See `Backend.workspace_bytes`. Of `POOLING`: the largest of each window and its place. Of products: what is
        padded. Of `RAGGED`: the rows for each group, as written and as turned, of two products at once.
        """
        if op.kind == RAGGED:
            position, dim = group_of(op)
            groups = in_shapes[position][dim] if position < len(in_shapes) else in_shapes[2][-1]
            return 4 * groups * in_bytes[0]
        if op.kind != POOLING:
            padded = padded_bytes(op, in_shapes)
            if op.body is not None and (whole := sum(tensor.size_bytes for tensor in op.ins)):
                padded = most_padded_bytes(op.body) * sum(in_bytes) // whole
            return super().workspace_bytes(op, in_bytes, in_shapes) + padded
        places = in_bytes[0] // op.ins[0].itemsize
        return places * INDEX_BYTES * (1 + op.ins[1].ndim)

    def beside_s(self, op: OpNode, in_bytes: Sequence[Number], device: Device) -> Number:
        """See `Backend.beside_s`: what `POOLING` and `RAGGED` are made of."""
        if op.kind == RAGGED:
            rows = group_count(op, in_bytes) * in_bytes[0]
            return (in_bytes[0] + rows * RAGGED_PASSES) * moving_time_s(
                1.0, device
            ) + 2 * device.launch_s
        if op.kind != POOLING:
            return super().beside_s(op, in_bytes, device)
        dims = op.ins[1].ndim
        places = in_bytes[0] * (1.0 / op.ins[0].itemsize)
        moved = places * float(INDEX_BYTES * (1 + 2 * dims)) + in_bytes[1] * 2.0
        return moved * moving_time_s(1.0, device) + 2 * device.launch_s

    def times(self, op: OpNode, in_bytes: Sequence[Number]) -> Number | float:
        """See `Backend.times`: of `RAGGED` once for each group."""
        return group_count(op, in_bytes) if op.kind == RAGGED else 1.0

    def turn_price(self, device: Device) -> TurnPrice:
        """See `Backend.turn_price`."""
        return partial(_turning_time_s, device)


def _before_barriers(graph: OpGraph) -> frozenset[int]:
    uses = uses_of(graph)
    return frozenset(
        op.id
        for op in graph.ops
        if op.kind == "scan_slice"
        and op.ins[0].shape[0] > 1
        and any(
            use.op is not None and _is_rematerialised(graph, op, graph.ops[use.op])
            for use in uses.get(op.outs[0].id, ())
        )
    )


def _is_rematerialised(graph: OpGraph, op: OpNode, reader: OpNode) -> bool:
    """Whether `reader` stands in a rematerialised block that `op` is not in."""
    entered = set(graph.tree.path(reader.region)).difference(graph.tree.path(op.region))
    return any(graph.tree.kind(region) == "remat" for region in entered)


def regroups(op: OpNode, operand: int) -> bool:
    """Whether an operand of a product of matrices has batch dims that are not its first ones, as heads of attention.

    Dims of one element stand nowhere.
    """
    if op.kind != "dot_general":
        return False
    batch: tuple[int, ...] = op.params["dimension_numbers"][1][operand]
    dims = [dim for dim, size in enumerate(op.ins[operand].shape) if size > 1]
    own = sorted(set(batch).intersection(dims))
    return own != dims[: len(own)]


def _turning_time_s(device: Device, kind: StepKind, size_bytes: int) -> float:
    if kind not in TURNED_STEPS:
        return 0.0
    return moving_time_s(2.0 * size_bytes, device) + device.launch_s
