"""Body: what a function treated as one operator costs, read off the graph of what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Strategy
from autopar.price.rate_kind import rate_kind
from autopar.price.touched import touched
from autopar.price.work import VIEWS, materialised, work_flops
from cost_models import compute_time_s
from cost_models.compute import Device


@dataclass(frozen=True)
class _Kernel:
    """One operator of a body: its work, the bytes it moves within the body, and the inputs and outputs it moves.

    `runs` is how often it runs: more than once in a loop. Of inputs and outputs stands the share that is moved.
    """

    runs: float
    kind: str
    flops: float
    dtype: str
    launched: bool
    inner_bytes: float
    inputs: tuple[tuple[int, float], ...]
    outputs: tuple[tuple[int, float], ...]


def body_time_s(op: OpNode, strategy: Strategy, mesh: DeviceMesh, device: Device) -> float:
    """Seconds of one device's share of `op`: the sum over the operators of its body, all split as it is.

        sum of max(flops / split / peak, bytes / memory bandwidth), for each operator that is launched

    Bytes are those of tensors that reach memory: of operands and results what the device holds of them, of tensors
    within the body 1 / split. That is what the expanded function costs if every operator in it is split the same way.
    """
    assert op.body is not None
    ins = [
        0 if t.literal is not None else p.local_size(t.shape, mesh) * t.itemsize
        for t, p in zip(op.ins, strategy.ins, strict=True)
    ]
    outs = [p.local_size(t.shape, mesh) * t.itemsize for t, p in zip(op.outs, strategy.outs, strict=True)]
    total = 0.0
    for kernel in _kernels(op.body):
        given = [share * (ins[n] if n < len(ins) else op.body.inputs[n].size_bytes) for n, share in kernel.inputs]
        size = sum(given) + sum(share * outs[n] for n, share in kernel.outputs) + kernel.inner_bytes / strategy.split
        time_s = compute_time_s(kernel.flops / strategy.split, size, kernel.dtype, device, kind=kernel.kind)
        total += kernel.runs * (time_s if kernel.launched else max(0.0, time_s - device.launch_s))
    return total


@lru_cache(maxsize=1024)
def _kernels(body: OpGraph) -> tuple[_Kernel, ...]:
    in_memory = materialised(body)
    inputs = {tensor.id: n for n, tensor in enumerate(body.inputs)}
    outputs = {tensor.id: n for n, tensor in enumerate(body.outputs)}
    found: list[_Kernel] = []
    for op in body.ops:
        if op.kind in VIEWS:
            continue
        shares = zip((*op.ins, *op.outs), touched(body, op), strict=True)
        moved = [(tensor, share) for tensor, share in shares if tensor.id in in_memory]
        found.append(
            _Kernel(
                body.tree.weight(op.region),
                rate_kind(op),
                work_flops(op),
                op.ins[0].dtype if op.ins else op.outs[0].dtype,
                any(tensor.id in in_memory for tensor in op.outs),
                sum(share * t.size_bytes for t, share in moved if t.id not in inputs and t.id not in outputs),
                tuple((inputs[tensor.id], share) for tensor, share in moved if tensor.id in inputs),
                tuple((outputs[tensor.id], share) for tensor, share in moved if tensor.id in outputs),
            )
        )
    return tuple(found)
