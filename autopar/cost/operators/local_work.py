"""Local work: what one device computes of an operator under a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autopar.backends.known import backend_of
from autopar.core.graph import OpNode
from autopar.ops.odd_products import Shares, widens
from cost_models import compute_time_s
from cost_models.compute import Device
from cost_models.curves import Number


class LocalWork(NamedTuple):
    """One device's share of `op`: operations, bytes read and written, the type that it computes in, what is computed.

    `elements` are those of both operands and the result, of a product of matrices and of a convolution as one. `runs`
    are how many a gather or scatter picks, and the bytes of each, `in_bytes` those of the operands. What is not
    `launched` is part of another kernel, a `turned` product computed the other way round. Of a kernel of several
    operators either operations or bytes are 0 (`cost.operators.fused`). `padding` is what a product pays of that.
    """

    op: OpNode
    flops: float
    size_bytes: float
    dtype: str
    kind: str
    elements: tuple[float, float, float] | None
    launched: bool
    in_bytes: tuple[float, ...] = ()
    runs: tuple[float, float] | None = None
    turned: bool = False
    padding: Shares = (0.0, 0.0)

    def time_s(self, device: Device) -> float:
        """Seconds on `device`, copies of a product's operands in another order included."""
        op, flops, size_bytes, dtype, kind, elements, launched, in_bytes, runs, turned, padding = (
            self
        )
        time_s = compute_time_s(
            flops,
            size_bytes,
            dtype,
            device,
            kind=kind,
            elements=elements,
            widens=widens(op),
            runs=runs,
        )

        time_s += beside_s(op, in_bytes, device)
        if elements is not None and op.kind == "dot_general":
            time_s += backend_of(device.compiler).product_turns_s(
                op, elements, flops, device, turned=turned, padding=padding
            )
        return time_s if launched else max(0.0, time_s - device.launch_s)


def beside_s(op: OpNode, in_bytes: Sequence[Number], device: Device) -> Number | float:
    """Seconds of further kernels that the compiler makes of `op`, of whose operands a device holds `in_bytes`."""
    backend = backend_of(device.compiler)
    return backend.beside_s(op, in_bytes, device) if op.kind in backend.several else 0.0
