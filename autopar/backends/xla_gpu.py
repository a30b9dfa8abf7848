"""XlaGpu: XLA's compiler for GPUs, as far as its own programs for H100s say (JAX 0.10.2, `benchmarks.gpu_aot`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from autopar.backends.backend import Backend
from autopar.core.graph import OpNode
from autopar.core.placement import StepKind
from autopar.core.program import Compute, ShardedProgram
from autopar.ops.fusion import Fusing
from autopar.ops.picked import Number
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

FUSING = Fusing(row_elements=ROW_ELEMENTS, anew=True, into_products=True)
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
    gradients_late: bool = True
    fusing: Fusing = FUSING

    def product_turns_s(
        self,
        op: OpNode,
        elements: tuple[Number, Number, Number],
        flops: Number,
        device: Device,
        *,
        turned: bool,
    ) -> Number:
        """See `Backend.product_turns_s`."""
        del turned
        total = flops * 0.0
        widest = max(tensor.itemsize for tensor in op.ins[:2])
        for operand, (count, tensor) in enumerate(zip(elements[:2], op.ins, strict=False)):
            if regroups(op, operand) or tensor.itemsize < widest:
                moved = count * float(tensor.itemsize + widest)
                total = total + moved * moving_time_s(1.0, device) + device.launch_s
        return total

    def shared_workspace_bytes(self, program: ShardedProgram) -> int:
        """See `Backend.shared_workspace_bytes`."""
        computes = [i.op.kind for i in program.instructions if isinstance(i, Compute)]
        return CUBLAS_BYTES if any(traits_of(kind).is_contraction for kind in computes) else 0

    def turn_price(self, device: Device) -> TurnPrice:
        """See `Backend.turn_price`."""
        return partial(_turning_time_s, device)


def regroups(op: OpNode, operand: int) -> bool:
    """Whether an operand of a product of matrices has batch dims that are not its first ones, as heads of attention."""
    if op.kind != "dot_general":
        return False
    batch: tuple[int, ...] = op.params["dimension_numbers"][1][operand]
    return sorted(batch) != list(range(len(batch)))


def _turning_time_s(device: Device, kind: StepKind, size_bytes: int) -> float:
    if kind not in TURNED_STEPS:
        return 0.0
    return moving_time_s(2.0 * size_bytes, device) + device.launch_s
