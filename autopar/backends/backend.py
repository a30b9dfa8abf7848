"""Backend: what is known of one compiler, as far as prices, peaks and programs differ for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.program import ShardedProgram
from autopar.ops.fusion import PLAIN, Fusing
from autopar.ops.holding import AS_WRITTEN, Holding
from autopar.ops.odd_products import Shares
from autopar.ops.picked import Number
from autopar.ops.traits import is_fusible
from autopar.ops.workspace import workspace_bytes
from autopar.redistribute.step import PackPrice, StepPrice, TurnPrice, no_pack, no_turn
from cost_models.compute import Device
from cost_models.spans import Group
from cost_models.terms import CollectiveKind

Workspace = Callable[[OpNode, Sequence[int], Sequence[Sequence[int]]], int]
"""The bytes that an operator takes while it runs, given the local bytes of its operands."""


@dataclass(frozen=True)
class SetAside:
    """Bytes of one device: what is predicted, and what if temporaries live longer, by a little first."""

    predicted_bytes: int
    later_bytes: tuple[int, ...]

    @property
    def most_bytes(self) -> int:
        """The largest of them."""
        return max((self.predicted_bytes, *self.later_bytes))

    def with_more(self, size_bytes: int) -> SetAside:
        """With so many bytes more all along."""
        later = tuple(size + size_bytes for size in self.later_bytes)
        return SetAside(self.predicted_bytes + size_bytes, later)

    def expected_bytes(self, counted_bytes: int) -> int:
        """The prediction, or more where both the program, of which so much was counted, and a little delay say so.

        It is off by 4.2 to 5.3 % on average (60 plans of `benchmarks.accuracy`, 80 and 80 other programs), and more
        than 2 % under of 0, 1 and 5; the prediction by itself is off by 1.3 to 3.0 %, and under of 1, 4 and 7.
        """
        return max(self.predicted_bytes, min((counted_bytes, *self.later_bytes[:1])))


@dataclass(frozen=True)
class Backend:
    """One compiler. This class knows nothing: of it are those of which nothing is known. Others override what they do.

    `tiled`: arrays lie in tiles of two dims, so a collective goes along its dim. Elsewhere compilers gather and scatter
    along the dim that lies first in memory, and put all else in that order and back, element by element: there shards
    travel whole, one behind the other, and are put in their places in one copy, run by run (a gather of 512x512 floats
    of 8 devices on a CPU: 1.0 ms for 2.4, of 1024x1024: 4.4 for 19.7).
    `lanes`: an array's last dim lies in memory in so many elements at a time, the last of them filled up.
    `apart_bytes`: in a bucket of all-reduces, values of at least so many bytes are one each, which the compiler joins
    without copies (`core.parcels`); None: none.
    `wants_matrices`: it puts operands of products of tensors in another order, and those of matrices not.
    `wants_rows`: it may lay out what an all_to_all is given otherwise than by rows, and then refuse it.
    `scatters_apart`: it may compute a scatter's operand in the scatter's loop, and then writes updates that are out of
    range at row 0 (XLA's CPU compiler, JAX 0.10.2). For the others XLA's own partitioner splits rows like that too.
    `repeats_random_bits`: every device makes all random bits of the compiler's own generator.
    `joined_gather_bytes`: up to so many bytes of gathers that wait for nothing it joins into one; 0: none.
    `holding`: what it holds otherwise than the program says.
    `several`: the kinds of operators that it makes several kernels of (`beside_s`).
    `fusing`: what it fuses beside what every backend does, by which time is priced.
    `counting`: as much of that as memory is counted by.
    """

    name: str = ""
    tiled: bool = False
    lanes: int = 1
    apart_bytes: int | None = None
    wants_matrices: bool = False
    wants_rows: bool = False
    scatters_apart: bool = True
    repeats_random_bits: bool = False
    joined_gather_bytes: int = 0
    holding: Holding = AS_WRITTEN
    several: frozenset[str] = frozenset()
    fusing: Fusing = PLAIN
    counting: Fusing = PLAIN

    def copied(self, graph: OpGraph) -> frozenset[int]:
        """The ids of the boundary operators of loops that copy what they pass on."""
        del graph
        return frozenset()

    def folded(self, graph: OpGraph) -> frozenset[int]:
        """The ids of the transposes that are computed with the product before them."""
        del graph
        return frozenset()

    def turned_products(self, graph: OpGraph) -> frozenset[int]:
        """The ids of the products that are computed the other way round."""
        del graph
        return frozenset()

    def padding_shares(self, graph: OpGraph) -> Mapping[int, Shares]:
        """By product that may be padded, which share of the padding of each operand it pays."""
        del graph
        return {}

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
        """Seconds in which operands are put in order, or padded, beside a product.

        Args:
          op: any operator.
          elements: those of its operands and of its result that a device holds.
          flops: 2 b m n k of these.
          device: the device.
          turned: whether it is one of `turned_products`.
          padding: what it pays of the padding of each operand (`padding_shares`).
        """
        del op, elements, device, turned, padding
        return flops * 0.0

    def is_summed(self, kind: CollectiveKind, group: Group) -> bool:
        """Whether a gather is run as an all-reduce of arrays that are zero but for a device's own part, or a scatter as
        an all-reduce of which a device takes its own part.

        Args:
          kind: of a collective.
          group: the devices that communicate.
        """
        del kind, group
        return False

    def turn_price(self, device: Device) -> TurnPrice:
        """The price of what a device copies beside a step along a dim other than the first."""
        del device
        return no_turn

    def pack_price(self, device: Device, mesh: DeviceMesh, price: StepPrice) -> PackPrice:
        """The price of laying out a bucket on a mesh of such devices, where collectives cost `price`."""
        del device, mesh, price
        return no_pack

    def shared_workspace_bytes(self, program: ShardedProgram) -> int:
        """What the compiler holds all along for the library that computes products, beside all that is counted."""
        del program
        return 0

    def workspace_bytes(
        self, op: OpNode, in_bytes: Sequence[int], in_shapes: Sequence[Sequence[int]]
    ) -> int:
        """What a device holds while it runs an operator, besides operands and results.

        Args:
          op: any operator.
          in_bytes: of its operands, those that it reads from memory.
          in_shapes: what a device has of its operands.
        """
        del in_shapes
        return workspace_bytes(op, in_bytes)

    def beside_s(self, op: OpNode, in_bytes: Sequence[Number], device: Device) -> Number:
        """Seconds of the kernels of one of the `several`, beside one that reads its operands and writes its results.

        Args:
          op: one of `several`.
          in_bytes: those of its operands that a device holds.
          device: the device.
        """
        del op, device
        return in_bytes[0] * 0.0

    def times(self, op: OpNode, in_bytes: Sequence[Number]) -> Number | float:
        """How often the operations of an operator are done by a device that holds `in_bytes` of its operands."""
        del op, in_bytes
        return 1.0

    def may_fuse(self, op: OpNode) -> bool:
        """Whether it may compute `op` within the loops of its readers, so that the result is never in memory."""
        return is_fusible(op)

    def written(self, program: ShardedProgram) -> frozenset[int]:
        """The values that have to be written before they are read."""
        del program
        return frozenset()

    def before_loops(self, program: ShardedProgram) -> Mapping[int, tuple[tuple[int, ...], ...]]:
        """By the region of a loop, the values that go through barriers before it, through one each all of a tuple."""
        del program
        return {}

    def set_aside(
        self, program: ShardedProgram, donated: Sequence[int], workspace: Workspace
    ) -> SetAside | None:
        """Bytes of one device: arguments + results + temporaries - results in donated arguments; None: not known.

        Args:
          program: routed (no Convert left).
          donated: positions of the inputs whose memory outputs may take.
          workspace: what operators take while they run.
        """
        del program, donated, workspace
        return None
