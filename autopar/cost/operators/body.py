"""Body: what a function treated as one operator costs, read off the graph of what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from autopar.backends.known import backend_of
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Strategy
from autopar.cost.operators.fused import bounds, kernel_flops, kernel_shares
from autopar.cost.operators.products import whole_elements
from autopar.ops.fusion import in_products, loops, materialised, written_out
from autopar.ops.odd_products import Shares, widens
from autopar.ops.picked import picked_runs
from autopar.ops.rate_kind import rate_kind
from autopar.ops.traits import traits_of
from cost_models import compute_time_s
from cost_models.compute import Device


@dataclass(frozen=True)
class _BodyKernel:
    """One operator of a body: its work, the bytes it moves within the body, and the inputs and outputs it moves.

    `times` is how often it runs: more than once in a loop. Of inputs and outputs stands the share that is moved. `runs`
    are those that a gather or scatter picks, and the bytes of each, `elements` those of both operands and the result of
    a product, of whose padding it pays `padding`. `repeats` is the share of it that the function computes, in the body
    of a derivative.
    """

    op: OpNode
    times: float
    kind: str
    flops: float
    dtype: str
    launched: bool
    inner_bytes: float
    inputs: tuple[tuple[int, float], ...]
    outputs: tuple[tuple[int, float], ...]
    runs: tuple[float, float] | None
    elements: tuple[float, float, float] | None
    turned: bool
    repeats: float
    padding: Shares

    def time_s(self, size_bytes: float, split: int, device: Device) -> float:
        """Seconds on a device that does one of `split` parts of it and moves `size_bytes`."""
        runs = None if self.runs is None else (self.runs[0] / split, self.runs[1])
        flops = self.flops / split
        elements = None
        if self.elements is not None and flops:
            lhs, rhs, out = self.elements
            elements = lhs / split, rhs / split, out / split

        time_s = compute_time_s(
            flops,
            size_bytes,
            self.dtype,
            device,
            kind=self.kind,
            elements=elements,
            widens=widens(self.op),
            runs=runs,
        )
        if elements is not None:
            time_s += backend_of(device.compiler).product_turns_s(
                self.op, elements, flops, device, turned=self.turned, padding=self.padding
            )
        return time_s if self.launched else max(0.0, time_s - device.launch_s)


def body_time_s(
    op: OpNode, strategy: Strategy, mesh: DeviceMesh, device: Device, *, merged: bool = False
) -> float:
    """Seconds of one device's share of `op`: the sum over the operators of its body, all split as it is.

        sum of max(flops / split / peak, bytes / memory bandwidth), for each kernel (`fused`)

    Bytes are those of tensors that reach memory: of operands and results what the device holds of them, of tensors
    within the body 1 / split, and so of what products multiply. That is what the expanded function costs if every
    operator in it is split the same way, along dims that all have. Of a derivative that is `merged` what its function
    computes costs nothing (`core.repeated`).
    """
    assert op.body is not None
    ins = [
        0 if t.literal is not None else p.local_size(t.shape, mesh) * t.itemsize
        for t, p in zip(op.ins, strategy.ins, strict=True)
    ]
    outs = [
        p.local_size(t.shape, mesh) * t.itemsize
        for t, p in zip(op.outs, strategy.outs, strict=True)
    ]
    total = 0.0
    for kernel in _kernels(op.body, device, mesh.size):
        part = 1.0 - kernel.repeats if merged else 1.0
        if not part:
            continue
        given = [
            share * (ins[n] if n < len(ins) else op.body.inputs[n].size_bytes)
            for n, share in kernel.inputs
        ]
        size = (
            sum(given)
            + sum(share * outs[n] for n, share in kernel.outputs)
            + kernel.inner_bytes / strategy.split
        )
        total += part * kernel.times * kernel.time_s(size, strategy.split, device)

    return total


@lru_cache(maxsize=1024)
def _kernels(body: OpGraph, device: Device, devices: int) -> tuple[_BodyKernel, ...]:
    backend = backend_of(device.compiler)
    fusing = backend.fusing
    turned = backend.turned_products(body)
    padding = backend.padding_shares(body)
    in_memory = materialised(body, fusing)
    absorbed = in_products(body, fusing)
    written = written_out(body, fusing)
    bound = bounds(body, device, devices)
    inputs = {tensor.id: n for n, tensor in enumerate(body.inputs)}
    outputs = {tensor.id: n for n, tensor in enumerate(body.outputs)}
    found: list[_BodyKernel] = []
    for op in body.ops:
        if traits_of(op.kind).is_view and op.id not in written:
            continue
        ends = loops(body, fusing)[op.id]
        times = len(ends)
        shares = kernel_shares(body, op, fusing, bound, times, devices)
        through = [
            (t, share) for t, share in zip((*op.ins, *op.outs), shares, strict=True) if share
        ]
        found.append(
            _BodyKernel(
                op,
                body.tree.weight(op.region),
                rate_kind(op),
                kernel_flops(body, op, fusing, bound, times),
                op.ins[0].dtype if op.ins else op.outs[0].dtype,
                op.id not in absorbed and any(tensor.id in in_memory for tensor in op.outs),
                sum(
                    share * t.size_bytes
                    for t, share in through
                    if t.id not in inputs and t.id not in outputs
                ),
                tuple((inputs[t.id], share) for t, share in through if t.id in inputs),
                tuple((outputs[t.id], share) for t, share in through if t.id in outputs),
                picked_runs(op, (1.0,) * (len(op.ins) + len(op.outs))),
                whole_elements(op) if op.kind == "dot_general" else None,
                op.id in turned,
                sum(body.ops[n].phase == "forward" for n in ends) / times,
                padding.get(op.id, (0.0, 0.0)),
            )
        )

    return tuple(found)
