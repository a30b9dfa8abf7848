"""What a program computes that XLA compiled for GPUs, as the compiler itself estimates it: HLO text in, numbers out.

With `xla_gpu_collect_cost_model_stats` the compiler writes `"reification_cost"` beside kernels, by the name of its
model. Taken as they are: "indexing-cost-model" for Triton fusions (softmax, norms), of which the others know nothing;
"sol" for other fusions (a roofline) and for cuBLAS, a table measured on H100. That ends at four products of 4096 rows,
columns and terms: larger ones take the rate of its last entry.

Priced here instead, by operations or bytes on the device's peaks, are products that the table does not hold (of
bfloat16 to float32 and of mixed types, which it puts 60 times too slow), convolutions of cuDNN, and copies. Products
then run at the 780 TFLOP/s that the table has for large ones of bfloat16, other types in proportion to their peaks.
Concatenations take the time that the compiler gives to what they move: it adds 400 operations an element to some, which
none of them does, so that these are not fused into reductions (`GpuHloCostAnalysis::HandleConcatenate`).
Nothing is said of launches: kernels are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

from autopar.inspect.hlo_text import HloArray, HloInstruction, HloModule, parse_module
from benchmarks.compiled_collectives import Made, communicated, rounds
from cost_models import Cluster
from cost_models.compute import Device, peak_flops_per_s

LARGE_PRODUCTS_FLOPS_PER_S = 780e12
"""What XLA's table of cuBLAS on H100 has for large products of bfloat16."""
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8"}
NO_KERNELS = frozenset(
    (
        "parameter",
        "constant",
        "bitcast",
        "tuple",
        "get-tuple-element",
        "partition-id",
        "replica-id",
        "after-all",
        "while",
        "conditional",
        "call",
        "async-start",
        "async-update",
        "async-done",
        "copy-done",
        "optimization-barrier",
        "add-dependency",
        "domain",
    )
)
"""Instructions that run nothing on a device by themselves; what they call is looked at on its own."""
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "send",
    "recv",
)

_COSTS = re.compile(r'"reification_cost":\[(.*?)\]')
_COST = re.compile(r'"exec_time_us":([\d.e+\-]+),.*?"name":"([^"]*)"')
_MOVING = re.compile(r'"memory_access_time_us":([\d.e+\-]+),"name":""')
_JOINED = re.compile(r"dimensions=\{(\d+)\}")
_WARP = 32
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


class Kernel(NamedTuple):
    """A kernel of a compiled program: how often it runs, and seconds of one run without its launch."""

    instruction: HloInstruction
    times: int
    seconds: float


def compiled_program(text: str, cluster: Cluster) -> Made:
    """What the program with this HLO text takes on `cluster`, in whose order its devices are numbered.

    Raises:
      UnknownRounds: for a loop whose rounds the compiler does not know.
      ValueError: for text that is not understood.
    """
    found = list(kernels_in(parse_module(text), cluster.device))
    kernels = sum(kernel.times for kernel in found)
    return Made(
        sum(kernel.times * kernel.seconds for kernel in found),
        kernels,
        *communicated(text, cluster),
        launching_s=kernels * cluster.device.launch_s,
    )


def kernels_in(module: HloModule, device: Device) -> Iterator[Kernel]:
    """The kernels of a module, those of loops with the rounds of all loops around them. Of a conditional all count."""
    yield from _kernels(module, module.entry, 1, device)


def _kernels(module: HloModule, computation: str, times: int, device: Device) -> Iterator[Kernel]:
    instructions = module.computations[computation]
    results = {instruction.name: instruction.result for instruction in instructions}
    for instruction in instructions:
        opcode = instruction.opcode
        if opcode.removesuffix("-start").removesuffix("-done") in COLLECTIVES:
            continue
        if opcode not in NO_KERNELS:
            yield Kernel(instruction, times, _seconds(module, instruction, results, device))
            continue
        if opcode in ("while", "conditional", "call", "async-start"):
            inside = times
            if opcode == "while":
                inside *= rounds(module.trip_count(instruction, computation))
            for called in instruction.called:
                yield from _kernels(module, called, inside, device)


def _seconds(
    module: HloModule,
    instruction: HloInstruction,
    results: Mapping[str, tuple[HloArray, ...]],
    device: Device,
) -> float:
    """Seconds of one run of a kernel."""
    arrays = [array for operand in instruction.operands for array in results[operand]]
    said = _costs(instruction)
    target = _target(instruction)
    if target.startswith("__cublas") and not _is_tabled(instruction, arrays):
        flops = _product_flops(instruction, arrays)
        return _roofline_s(flops, arrays[0].dtype, _moved_bytes(instruction, arrays), device)
    if target.startswith("__cudnn$conv"):
        flops = _convolution_flops(instruction, arrays, target)
        return _roofline_s(flops, arrays[0].dtype, _moved_bytes(instruction, arrays), device)
    if '"__triton' in instruction.attributes and "indexing-cost-model" in said:
        return said["indexing-cost-model"]
    found = _MOVING.search(instruction.attributes) if _holds_off(module, instruction) else None
    if found is not None:
        return 1e-6 * float(found[1])
    if "sol" in said:
        return said["sol"]
    return _moved_bytes(instruction, arrays) / device.memory_bandwidth_bytes_per_s


def _holds_off(module: HloModule, instruction: HloInstruction) -> bool:
    """Whether a fusion joins parts whose bounds lie within a warp, to which the compiler adds operations."""
    for called in instruction.called if instruction.opcode == "fusion" else ():
        inner = module.computations[called]
        results = {one.name: one.result for one in inner}
        for one in inner:
            if one.opcode == "concatenate" and (found := _JOINED.search(one.attributes)):
                dim = int(found[1])
                if dim and results[one.operands[0]][0].dims[dim] % _WARP:
                    return True
    return False


def _costs(instruction: HloInstruction) -> dict[str, float]:
    """The compiler's estimates in seconds, by the name of its model."""
    found = _COSTS.search(instruction.attributes)
    if found is None:
        return {}
    return {name: 1e-6 * float(micros) for micros, name in _COST.findall(found[1])}


def _target(instruction: HloInstruction) -> str:
    found = _TARGET.search(instruction.attributes) if instruction.opcode == "custom-call" else None
    return found[1] if found else ""


def _is_tabled(instruction: HloInstruction, arrays: list[HloArray]) -> bool:
    """Whether the compiler's table holds the product: both operands and the result of one type of 16 bits."""
    types = {array.dtype for array in (*arrays[:2], instruction.result[0])}
    return len(types) == 1 and types <= {"bf16", "f16"}


def _moved_bytes(instruction: HloInstruction, arrays: list[HloArray]) -> int:
    """The bytes of operands and result, without a workspace."""
    results = instruction.result[:1] if instruction.opcode == "custom-call" else instruction.result
    return sum(array.size_bytes for array in (*arrays, *results))


def _roofline_s(flops: float, dtype: str, size_bytes: float, device: Device) -> float:
    share = LARGE_PRODUCTS_FLOPS_PER_S / peak_flops_per_s(device, "bfloat16")
    rate = share * peak_flops_per_s(device, DTYPES.get(dtype, "bfloat16"))
    return max(flops / rate, size_bytes / device.memory_bandwidth_bytes_per_s)


def _product_flops(instruction: HloInstruction, arrays: list[HloArray]) -> float:
    contracted = _CONTRACTED.search(instruction.attributes)
    if contracted is None:
        raise ValueError(f"product {instruction.name} does not say what it contracts")
    dims = [int(dim) for dim in re.findall(r"\d+", contracted[1])]
    return 2.0 * prod(instruction.result[0].dims) * prod(arrays[0].dims[dim] for dim in dims)


def _convolution_flops(instruction: HloInstruction, arrays: list[HloArray], target: str) -> float:
    """2 x places of the output x channels out x places of the window x channels in of a group.

    A gradient has the labels of the convolution that it is of; its result stands for the image or the window.
    """
    labels = _LABELS.search(instruction.attributes)
    if labels is None:
        raise ValueError(f"convolution {instruction.name} does not say what its dims are")
    result = instruction.result[0]
    if target == "__cudnn$convBackwardInput":
        out, window = arrays[0], arrays[1]
    elif target == "__cudnn$convBackwardFilter":
        out, window = arrays[1], result
    else:
        out, window = result, arrays[1]
    inputs = window.dims[labels[2].index("i")]
    places = prod(n for n, label in zip(window.dims, labels[2], strict=True) if label.isdigit())
    return 2.0 * prod(out.dims) * places * inputs
