"""Device, and the roofline: seconds that one device computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

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

    `launch_s` is the fixed time of one kernel. `compiler` is "xla_cpu" where programs are known to be compiled by XLA
    for CPUs, which decides what memory they need; "" says nothing.

    Invariants: all numbers are finite and > 0 (`launch_s` >= 0); a float32 peak is there.
    """

    name: str
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    launch_s: float
    compiler: str = ""

    def __post_init__(self) -> None:
        if "float32" not in self.peak_flops_per_s:
            raise ValueError(f"device {self.name!r} states no float32 peak, to which other types fall back")
        numbers = {f"peak_flops_per_s[{dtype}]": peak for dtype, peak in self.peak_flops_per_s.items()}
        numbers["memory_bytes"] = self.memory_bytes
        numbers["memory_bandwidth_bytes_per_s"] = self.memory_bandwidth_bytes_per_s
        for what, number in numbers.items():
            if not (isfinite(number) and number > 0):
                raise ValueError(f"device {self.name!r}: {what} must be finite and > 0, got {number}")
        if not (isfinite(self.launch_s) and self.launch_s >= 0):
            raise ValueError(f"device {self.name!r}: launch_s must be finite and >= 0, got {self.launch_s}")


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


def slowest_device(devices: tuple[Device, ...]) -> Device:
    """The device that takes as long as the slowest of `devices` for every kernel, and holds what all of them can.

    As long to within the difference of their launches: the slowest to compute need not be the slowest to launch.
    Its name lists theirs, each once. A type has a peak of its own if it has one on any of them.
    """
    names = tuple(dict.fromkeys(device.name for device in devices))
    dtypes = dict.fromkeys(dtype for device in devices for dtype in device.peak_flops_per_s)
    return Device(
        name=" + ".join(names),
        memory_bytes=min(device.memory_bytes for device in devices),
        memory_bandwidth_bytes_per_s=min(device.memory_bandwidth_bytes_per_s for device in devices),
        peak_flops_per_s={dtype: min(peak_flops_per_s(device, dtype) for device in devices) for dtype in dtypes},
        launch_s=max(device.launch_s for device in devices),
        compiler=devices[0].compiler if len({device.compiler for device in devices}) == 1 else "",
    )


def compute_time_s(flops: float, size_bytes: float, dtype: str, device: Device) -> float:
    """Seconds of one kernel on one device: the slower of computing and moving, and the launch.

        max(flops / peak, size_bytes / memory bandwidth) + launch

    Args:
      flops: floating-point (or integer) operations; a multiply-add counts two (>= 0).
      size_bytes: bytes read and written in device memory (>= 0).
      dtype: element type of the operands, as numpy or JAX name it.
      device: the device.

    Raises:
      ValueError: if `flops` or `size_bytes` is negative.

    Reference: Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
    """
    if not (flops >= 0 and size_bytes >= 0):
        raise ValueError(f"flops and size_bytes must be >= 0, got {flops} and {size_bytes}")
    computing = flops / peak_flops_per_s(device, dtype)
    return max(computing, size_bytes / device.memory_bandwidth_bytes_per_s) + device.launch_s


def _fallbacks(dtype: str) -> tuple[str, ...]:
    if dtype.startswith("uint"):
        return (dtype[1:], *FALLBACKS.get(dtype[1:], ()))
    if dtype.startswith(("float8", "float6", "float4")):
        return ("float8_e4m3fn", "bfloat16", "float16")
    return FALLBACKS.get(dtype, ("int32",))
