"""LocalOp: what a localiser knows of its operator and of the device it runs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from autopar._mesh import without_shardings
from autopar._payload import Payload
from autopar.backends.backend import Backend
from autopar.backends.known import UNKNOWN
from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Strategy
from autopar.emit.exchange import Exchanger

Array = jax.Array
Run = Callable[..., Sequence[Array]]
OffsetOf = Callable[[tuple[str, ...]], Any]


@dataclass(frozen=True)
class LocalOp:
    """One operator, its strategy and mesh.

    `offset_of` tells this device's position along axes, major to minor; `exchanger` sends what devices exchange.
    `backend` compiles it. A shard is a run of elements, or, `interleaved`, every nth of them.
    """

    op: OpNode
    strategy: Strategy
    mesh: DeviceMesh
    offset_of: OffsetOf
    exchanger: Exchanger
    backend: Backend = UNKNOWN
    interleaved: bool = False

    @property
    def payload(self) -> Payload:
        """The traced primitive and its parameters.

        Raises:
          TypeError: if the operator was not traced.
        """
        if not isinstance(self.op.payload, Payload):
            raise TypeError(f"operator {self.op.id} ({self.op.kind}) holds no primitive")
        return self.op.payload

    def in_shape(self, operand: int) -> tuple[int, ...]:
        """The local shape of an operand."""
        return self.strategy.ins[operand].local_shape(self.op.ins[operand].shape, self.mesh)

    def out_shape(self, result: int = 0) -> tuple[int, ...]:
        """The local shape of a result."""
        return self.strategy.outs[result].local_shape(self.op.outs[result].shape, self.mesh)

    def start(self, axes: tuple[str, ...], size: int) -> Any:
        """Where this device's shard begins in a dim of `size` elements that `axes` split."""
        if not axes:
            return 0
        offset = self.offset_of(axes)
        return offset if self.interleaved else offset * (size // self.mesh.product(axes))

    def step(self, axes: tuple[str, ...]) -> int:
        """How far apart in the whole dim two neighbours of a shard stand."""
        return self.mesh.product(axes) if self.interleaved else 1

    def bind(self, **changed: Any) -> Run:
        """The primitive, with these parameters changed and none that names a global sharding."""
        primitive = self.payload.primitive
        params = without_shardings(self.payload.params) | changed

        def run(*operands: Array) -> Sequence[Array]:
            results = primitive.bind(*operands, **primitive.get_bind_params(params))
            return list(results) if primitive.multiple_results else [results]

        return run
