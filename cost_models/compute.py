"""Device, and the roofline: seconds that one device computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from cost_models.curves import (
    PRODUCTS,
    Curve,
    Efficiency,
    Floats,
    HalfSizes,
    Number,
    Packing,
    Reach,
    product_dims,
    slowest_curve,
    slowest_packing,
)
from cost_models.overlap import Overlap, slowest_overlap

FALLBACKS: dict[str, tuple[str, ...]] = {
    "float64": ("float32",),
    "float16": ("bfloat16", "float32"),
    "bfloat16": ("float16", "float32"),
    "complex64": ("float32",),
    "complex128": ("float64", "float32"),
    "int8": ("int32", "float32"),
    "int4": ("int8", "int32", "float32"),
    "int2": ("int8", "int32", "float32"),
    "int16": ("int32", "float32"),
    "int32": ("float32",),
    "int64": ("int32", "float32"),
    "bool": ("int32", "float32"),
}
"""The types whose peak is taken, in this order, when a device states none. See `peak_flops_per_s`."""


PCIE_3_BYTES_PER_S = 15.75e9
"""PCI Express 3.0, 16 lanes, one direction: 8 GT/s a lane, 128 of 130 bits are data."""


@dataclass(frozen=True)
class Device:
    """One accelerator, with base units.

    `peak_flops_per_s` maps an element type (numpy and JAX names) to the peak of dense matrix products that JAX
    reaches with its default precision:

    * float32 on NVIDIA since Ampere is the TF32 peak of the tensor cores, on TPU the bfloat16 peak: "float32 dot
      products may be computed with reduced-precision arithmetic internally (bfloat16 on TPU, TF32 on recent
      GPUs)", JAX documentation, "Matmul precision". A program that asks for precision "highest" is slower than
      this. Operators that are not products do not come near any peak: memory bandwidth prices them.
    * never the vendor's figures "with sparsity", which are twice the dense ones.

    `launch_s` is the fixed time of one kernel. `overlap` says how computing and communicating slow each other, where a
    device does both at once; None: it does one after the other. `efficiency` is what of all this kernels reach; None:
    all of it. `compiler` is "xla_cpu" where programs are known to be compiled by XLA for CPUs, which decides what
    memory is needed, "xla_gpu" where by XLA for GPUs, which decides what they fuse, and "xla_tpu" for TPUs, which make
    random bits in a way of their own; "" says nothing. `host_bandwidth_bytes_per_s` is that of its link to the host's
    memory, in one direction.

    Invariants: all numbers are finite and > 0 (`launch_s` >= 0); a float32 peak is there.
    """

    name: str
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    launch_s: float
    overlap: Overlap | None = None
    efficiency: Efficiency | None = None
    compiler: str = ""
    host_bandwidth_bytes_per_s: float = PCIE_3_BYTES_PER_S

    def __post_init__(self) -> None:
        if "float32" not in self.peak_flops_per_s:
            raise ValueError(
                f"device {self.name!r} states no float32 peak, to which other types fall back"
            )

        numbers = {
            f"peak_flops_per_s[{dtype}]": peak for dtype, peak in self.peak_flops_per_s.items()
        }
        numbers["memory_bytes"] = self.memory_bytes
        numbers["memory_bandwidth_bytes_per_s"] = self.memory_bandwidth_bytes_per_s
        numbers["host_bandwidth_bytes_per_s"] = self.host_bandwidth_bytes_per_s
        for what, number in numbers.items():
            if not (isfinite(number) and number > 0):
                raise ValueError(
                    f"device {self.name!r}: {what} must be finite and > 0, got {number}"
                )

        if not (isfinite(self.launch_s) and self.launch_s >= 0):
            raise ValueError(
                f"device {self.name!r}: launch_s must be finite and >= 0, got {self.launch_s}"
            )


def peak_flops_per_s(device: Device, dtype: str) -> float:
    """The peak of `device` for element type `dtype`.

    A type without a peak of its own takes one from `FALLBACKS`: the 16-bit floats are alike; integers take int32,
    or float32 (no matrix unit computes them, the vector units do); unsigned integers are as signed; every float8
    and smaller as float8_e4m3fn, else as bfloat16; complex numbers as their parts (count real operations);
    float64 without a peak as float32, which is optimistic: such a device emulates it. An unknown type (a PRNG key)
    is as int32.
    """
    for name in (dtype, *_fallbacks(dtype)):
        if name in device.peak_flops_per_s:
            return device.peak_flops_per_s[name]
    return device.peak_flops_per_s["float32"]


def host_time_s(size_bytes: float, device: Device) -> float:
    """Seconds of `size_bytes` between a device and the memory of its host."""
    return size_bytes / device.host_bandwidth_bytes_per_s


def slowest_device(devices: tuple[Device, ...]) -> Device:
    """The device that takes as long as the slowest of `devices` for every kernel, and holds what all of them can.

    As long to within the difference of their launches: the slowest to compute need not be the slowest to launch, or to
    start a product.
    Its name lists theirs, each once. A type has a peak of its own if it has one on any of them.
    """
    if all(device == devices[0] for device in devices):
        return devices[0]
    names = tuple(dict.fromkeys(device.name for device in devices))
    dtypes = dict.fromkeys(dtype for device in devices for dtype in device.peak_flops_per_s)

    return Device(
        name=" + ".join(names),
        memory_bytes=min(device.memory_bytes for device in devices),
        memory_bandwidth_bytes_per_s=min(device.memory_bandwidth_bytes_per_s for device in devices),
        peak_flops_per_s={
            dtype: min(peak_flops_per_s(device, dtype) for device in devices) for dtype in dtypes
        },
        launch_s=max(device.launch_s for device in devices),
        overlap=slowest_overlap(tuple(device.overlap for device in devices)),
        efficiency=_slowest_efficiency(devices),
        compiler=devices[0].compiler if len({device.compiler for device in devices}) == 1 else "",
        host_bandwidth_bytes_per_s=min(device.host_bandwidth_bytes_per_s for device in devices),
    )


def work_curve(device: Device, kind: str, dtype: str) -> Curve:
    """Seconds by the operations of `kind` on large operands: what its `efficiency` states, or at the peak."""
    stated = None if device.efficiency is None else device.efficiency.of(kind, dtype)
    return Curve((), (), 1 / peak_flops_per_s(device, dtype)) if stated is None else stated


def moving_time_s(size_bytes: float, device: Device) -> float:
    """Seconds in which a kernel reads and writes `size_bytes`: by the curve of its `efficiency`, or the bandwidth."""
    if device.efficiency is None or device.efficiency.memory is None:
        return size_bytes / device.memory_bandwidth_bytes_per_s
    return device.efficiency.memory.time_s(size_bytes)


def fresh_time_s(size_bytes: float, device: Device) -> float:
    """Seconds in which memory that the system has just given is touched for the first time; 0 where nothing says."""
    if device.efficiency is None or device.efficiency.fresh is None:
        return 0.0
    return device.efficiency.fresh.time_s(size_bytes)


def compute_time_s(
    flops: float,
    size_bytes: float,
    dtype: str,
    device: Device,
    *,
    kind: str = "",
    elements: tuple[float, float, float] | None = None,
    widens: bool = False,
    runs: tuple[float, float] | None = None,
) -> float:
    """Seconds of one kernel on one device: the slower of computing and moving, and the launch.

        max(flops / peak, size_bytes / memory bandwidth) + launch

    With an `efficiency`, flops / peak gives way to the curve of its kind, or to what products reach (`Reach`), and is
    stretched by half sizes, or by what a convolution packs, where `elements` are given; size_bytes / memory bandwidth
    gives way to the curve of memory. What is picked takes no less than the curve of `runs` says.

    Args:
      flops: floating-point (or integer) operations; a multiply-add counts two (>= 0).
      size_bytes: bytes read and written in device memory (>= 0).
      dtype: element type of the operands, as numpy or JAX name it.
      device: the device.
      kind: what is computed, as JAX names its primitives; "": a product.
      elements: of a product of matrices: those of both operands, and of the result. A convolution is the product of
        its patches, unrolled, with its window: see `convolution_elements`.
      widens: whether the result of a product is of a wider type, which the rates of `Reach` are not of.
      runs: of a gather or scatter: how many runs it picks, and the bytes of each.

    Raises:
      ValueError: if `flops` or `size_bytes` is negative.

    Reference: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
    """
    if not (flops >= 0 and size_bytes >= 0):
        raise ValueError(f"flops and size_bytes must be >= 0, got {flops} and {size_bytes}")
    work = None if device.efficiency is None else device.efficiency.of(kind, dtype)
    computing = (
        _at_peak_s(flops, kind, dtype, device, None if widens else elements)
        if work is None
        else work.time_s(flops)
    )
    losing = _losing(device, kind, dtype)
    if losing is not None and elements is not None and flops:
        computing *= losing.stretch(*product_dims(*elements, flops))

    run = None if runs is None or device.efficiency is None else device.efficiency.run(kind)
    picking = 0.0 if runs is None or run is None else runs[0] * run.time_s(runs[1])
    return max(computing, picking, moving_time_s(size_bytes, device)) + device.launch_s


def compute_times_s(
    flops: Floats,
    size_bytes: Floats,
    dtype: str,
    device: Device,
    *,
    kind: str = "",
    elements: tuple[Floats, Floats, Floats] | None = None,
    widens: bool = False,
    runs: tuple[Floats, Floats] | None = None,
) -> Floats:
    """`compute_time_s` of several kernels of one kind and type, at once: arrays of one length."""
    work = None if device.efficiency is None else device.efficiency.of(kind, dtype)
    computing = (
        _at_peak_s(flops, kind, dtype, device, None if widens else elements)
        if work is None
        else work.times_s(flops)
    )
    losing = _losing(device, kind, dtype)
    if losing is not None and elements is not None and len(flops) and flops.min() > 0:
        computing *= losing.stretch(*product_dims(*elements, flops))

    if device.efficiency is None or device.efficiency.memory is None:
        moving = size_bytes / device.memory_bandwidth_bytes_per_s
    else:
        moving = device.efficiency.memory.times_s(size_bytes)

    run = None if runs is None or device.efficiency is None else device.efficiency.run(kind)
    if runs is not None and run is not None:
        moving = np.maximum(moving, runs[0] * run.times_s(runs[1]))

    return np.maximum(computing, moving) + device.launch_s


def _at_peak_s(
    flops: Number,
    kind: str,
    dtype: str,
    device: Device,
    elements: tuple[Number, Number, Number] | None,
) -> Number:
    """Seconds at the peak, or at what products reach of it (`Reach`)."""
    peak = peak_flops_per_s(device, dtype)
    reach = None if device.efficiency is None else device.efficiency.reach
    if reach is None or kind.partition(":")[0] not in PRODUCTS:
        return flops / peak
    is_known = reach.rates is not None and dtype in reach.rates.dtypes
    if elements is None or not is_known or kind.startswith("conv") or not np.all(flops):
        return reach.time_s(flops, peak)
    return reach.time_s(flops, peak, product_dims(*elements, flops))


def _losing(device: Device, kind: str, dtype: str) -> HalfSizes | Packing | None:
    """What thin operands of a product, or of a convolution, lose; None: nothing."""
    if kind.startswith("conv_general_dilated"):
        return None if device.efficiency is None else device.efficiency.packing(kind)
    return half_sizes(device, dtype)


def half_sizes(device: Device, dtype: str) -> HalfSizes | None:
    """The half sizes of products of `dtype`; None: they reach their peak at any size. Types fall back as for peaks."""
    if device.efficiency is None:
        return None
    known = device.efficiency.products
    return next((known[name] for name in (dtype, *_fallbacks(dtype)) if name in known), None)


def _slowest_efficiency(devices: tuple[Device, ...]) -> Efficiency | None:
    """What the slowest of `devices` reach of each; None if none of them says."""
    known = [device.efficiency for device in devices if device.efficiency is not None]
    if not known:
        return None

    dtypes = dict.fromkeys(dtype for each in known for dtype in each.products)
    halves = {
        dtype: [half_sizes(device, dtype) or HalfSizes(0, 0, 0) for device in devices]
        for dtype in dtypes
    }
    kinds = {
        kind: dict.fromkeys(d for e in known for d in e.work.get(kind, {}))
        for e in known
        for kind in e.work
    }
    fresh = [each.fresh for each in known if each.fresh is not None]
    picked = {
        kind: [c for e in known if (c := e.run(kind)) is not None] for e in known for kind in e.runs
    }
    packed = {
        kind: [p for e in known if (p := e.packing(kind)) is not None]
        for e in known
        for kind in e.convolutions
    }
    return Efficiency(
        products={
            dtype: HalfSizes(*(max(h.sizes[n] for h in mine) for n in range(3)))
            for dtype, mine in halves.items()
        },
        work={
            kind: {
                d: slowest_curve(tuple(work_curve(device, kind, d) for device in devices))
                for d in types
            }
            for kind, types in kinds.items()
        },
        memory=slowest_curve(tuple(_memory_curve(device) for device in devices))
        if any(each.memory is not None for each in known)
        else None,
        fresh=slowest_curve(tuple(fresh)) if fresh else None,
        convolutions={kind: slowest_packing(mine) for kind, mine in packed.items()},
        runs={kind: slowest_curve(tuple(mine)) for kind, mine in picked.items()},
        reach=_slowest_reach(devices),
    )


def _slowest_reach(devices: tuple[Device, ...]) -> Reach | None:
    """What products reach on the device where large ones take longest."""

    def reach(device: Device) -> Reach | None:
        return None if device.efficiency is None else device.efficiency.reach

    def rate(device: Device) -> float:
        mine = reach(device)
        return peak_flops_per_s(device, "bfloat16") * (1.0 if mine is None else mine.share)

    return reach(min(devices, key=rate))


def _memory_curve(device: Device) -> Curve:
    if device.efficiency is None or device.efficiency.memory is None:
        return Curve((), (), 1 / device.memory_bandwidth_bytes_per_s)
    return device.efficiency.memory


def _fallbacks(dtype: str) -> tuple[str, ...]:
    if dtype.startswith("uint"):
        return (dtype[1:], *FALLBACKS.get(dtype[1:], ()))
    if dtype.startswith(("float8", "float6", "float4")):
        return ("float8_e4m3fn", "bfloat16", "float16")
    return FALLBACKS.get(dtype, ("int32",))
