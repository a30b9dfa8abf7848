"""XlaCpu: XLA's compiler for CPUs, found by measuring programs on 8 virtual devices (JAX 0.10.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.backends.backend import Backend, SetAside, Workspace
from autopar.backends.xla_cpu import loops, predict, ragged, turns
from autopar.backends.xla_cpu.rereads import reread
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.parcels import LARGE_BYTES
from autopar.core.program import ShardedProgram
from autopar.ops.odd_products import Shares
from autopar.ops.picked import Number
from autopar.ops.ragged_products import RAGGED, group_count
from autopar.redistribute.step import PackPrice, StepPrice, TurnPrice
from cost_models.compute import Device


@dataclass(frozen=True)
class XlaCpu(Backend):
    """XLA's compiler for CPUs. Copies have a price where a profile knows what a transpose takes."""

    name: str = "xla_cpu"
    apart_bytes: int | None = LARGE_BYTES
    wants_matrices: bool = True
    wants_rows: bool = True
    several: frozenset[str] = frozenset((RAGGED,))

    def copied(self, graph: OpGraph) -> frozenset[int]:
        """See `loops.copied`."""
        return loops.copied(graph)

    def folded(self, graph: OpGraph) -> frozenset[int]:
        """See `turns.folded`."""
        return turns.folded(graph)

    def turned_products(self, graph: OpGraph) -> frozenset[int]:
        """See `turns.turned_products`."""
        return turns.turned_products(graph)

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
        """See `turns.product_turns_s`."""
        del padding
        return turns.product_turns_s(op, elements, flops, device, turned=turned)

    def workspace_bytes(
        self, op: OpNode, in_bytes: Sequence[int], in_shapes: Sequence[Sequence[int]]
    ) -> int:
        """See `Backend.workspace_bytes`, and `ragged`."""
        if op.kind == RAGGED:
            return ragged.workspace_bytes(op, in_bytes, in_shapes)
        return super().workspace_bytes(op, in_bytes, in_shapes)

    def beside_s(self, op: OpNode, in_bytes: Sequence[Number], device: Device) -> Number:
        """See `ragged.beside_s`."""
        return ragged.beside_s(op, in_bytes, device)

    def times(self, op: OpNode, in_bytes: Sequence[Number]) -> Number | float:
        """See `Backend.times`: of `RAGGED` once for each group."""
        return group_count(op, in_bytes) if op.kind == RAGGED else 1.0

    def turn_price(self, device: Device) -> TurnPrice:
        """See `turns.step_turn_price`."""
        return turns.step_turn_price(device)

    def pack_price(self, device: Device, mesh: DeviceMesh, price: StepPrice) -> PackPrice:
        """See `turns.bucket_pack_price`."""
        del mesh
        return turns.bucket_pack_price(device, price)

    def written(self, program: ShardedProgram) -> frozenset[int]:
        """See `rereads.reread`."""
        return reread(program)

    def set_aside(
        self, program: ShardedProgram, donated: Sequence[int], workspace: Workspace
    ) -> SetAside | None:
        """See `predict.set_aside`, and `ragged`."""
        found = predict.set_aside(program, donated, workspace)
        return found.with_more(ragged.kept_bytes(program))
