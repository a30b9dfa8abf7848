"""Seconds of the kernels that most time goes to, by shape: what they compute and what they move, on the roofline.

Counts are those of one device's share. Peaks are a device's own, so these are the least times that the hardware allows:
no kernel reaches all of a peak, and short ones reach little of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from cost_models.compute import Device, compute_time_s
from cost_models.curves import convolution_elements

_BITS = {"bool": 8, "complex64": 64, "complex128": 128}


def item_bytes(dtype: str) -> float:
    """The bytes of one element: "float32" has 4, "float8_e4m3fn" 1, "int4" one half.

    Raises:
      ValueError: if the name says no size.
    """
    if dtype in _BITS:
        return _BITS[dtype] / 8
    digits = dtype.split("_")[0].lstrip("abcdefghijklmnopqrstuvwxyz")
    if not digits.isdigit():
        raise ValueError(
            f"element type {dtype!r} says no size; give one such as float32, bfloat16, int8, float8_e4m3fn"
        )
    return int(digits) / 8


def matmul_time_s(m: int, n: int, k: int, dtype: str, device: Device, *, batch: int = 1) -> float:
    """Time of lhs[batch, m, k] . rhs[batch, k, n] -> out[batch, m, n], all of `dtype`.

        max(2 b m n k / peak, b (m k + k n + m n) itemsize / memory bandwidth) + launch

    Small dims reach less of the peak where the device says so (`curves.HalfSizes`).

    Raises:
      ValueError: if a size is below 1.
    """
    _check({"m": m, "n": n, "k": k, "batch": batch})
    elements = (float(batch * m * k), float(batch * k * n), float(batch * m * n))
    size = sum(elements) * item_bytes(dtype)
    return compute_time_s(
        2.0 * batch * m * n * k, size, dtype, device, kind="dot_general", elements=elements
    )


def convolution_time_s(
    batch: int,
    image: tuple[int, ...],
    window: tuple[int, ...],
    channels: tuple[int, int],
    dtype: str,
    device: Device,
    *,
    stride: int = 1,
    groups: int = 1,
) -> float:
    """Time of x[batch, image, c_in] convolved with w[window, c_in / groups, c_out], in steps of `stride`.

        max(2 |out| |window| c_in / groups / peak, (|x| + |w| + |out|) itemsize / memory bandwidth) + launch

    Few channels reach less of the peak where the device says so (`curves.Packing`).

    `channels` is (c_in, c_out); borders are padded, so out has ceil(image / stride) places in each direction.

    Raises:
      ValueError: if a size is below 1, or the channels are no multiples of `groups`.
    """
    places = {f"image {n}": size for n, size in enumerate(image)} | {
        f"window {n}": size for n, size in enumerate(window)
    }
    _check(
        {
            **places,
            "batch": batch,
            "in": channels[0],
            "out": channels[1],
            "stride": stride,
            "groups": groups,
        }
    )
    if channels[0] % groups or channels[1] % groups:
        raise ValueError(f"channels {channels} are no multiples of groups {groups}")

    given = batch * prod(image) * channels[0]
    made = batch * prod(-(-size // stride) for size in image) * channels[1]
    weights = prod(window) * channels[0] // groups * channels[1]
    flops = 2.0 * made * prod(window) * channels[0] / groups
    size = (given + weights + made) * item_bytes(dtype)
    elements = convolution_elements(float(weights), float(made), channels[1] / groups, flops)
    return compute_time_s(
        flops, size, dtype, device, kind="conv_general_dilated", elements=elements
    )


def attention_time_s(
    heads: tuple[int, int],
    lengths: tuple[int, int],
    width: int,
    dtype: str,
    device: Device,
    *,
    batch: int = 1,
    causal: bool = False,
    fused: bool = True,
) -> float:
    """Time of softmax(q . k) . v for q[batch, h, q, width], k and v[batch, h_kv, k, width]; forward.

        max(4 b h q k width / peak, (|q| + |k| + |v| + |out|) itemsize / memory bandwidth) + launch

    `heads` is (h, h_kv), `lengths` is (q, k). Not fused, three kernels write and read b h q k scores, and as many
    weights, in memory; the softmax between moves them once each way. With `causal` the last query sees all keys, each
    one before it one less, and a kernel that is fused leaves out what is not seen.

    Raises:
      ValueError: if a size is below 1, or h is no multiple of h_kv.

    Reference: Dao et al. 2022, "FlashAttention" (fused). Differs: what does not fit on the chip is not read again.
    """
    (h, h_kv) = heads
    (q, k) = lengths
    _check({"heads": h, "key heads": h_kv, "queries": q, "keys": k, "width": width, "batch": batch})
    if h % h_kv:
        raise ValueError(f"{h} heads are no multiple of {h_kv} key heads")

    item = item_bytes(dtype)
    ends = 2 * batch * (h * q + h_kv * k) * width * item
    scores = batch * h * q * k
    if fused:
        looking = min(q, k)  # queries that see any key
        seen = looking * (k - (looking - 1) / 2) / (q * k) if causal else 1.0
        return compute_time_s(4.0 * scores * width * seen, ends, dtype, device, kind="attention")

    product = compute_time_s(2.0 * scores * width, ends / 2 + scores * item, dtype, device)
    return 2 * product + compute_time_s(
        5.0 * scores, 2 * scores * item, "float32", device, kind="softmax"
    )


def elementwise_time_s(
    size_bytes: float, results_bytes: float, device: Device, *, operations: int = 1
) -> float:
    """Time of a chain of `operations` element by element, which a compiler fuses: it moves its ends, not its middles.

        (size_bytes + results_bytes) / memory bandwidth + launch

    However many operations there are, they are taken to be computed while memory is waited for.

    Raises:
      ValueError: if there is no operation.
    """
    _check({"operations": operations})
    return compute_time_s(0.0, size_bytes + results_bytes, "float32", device)


def _check(sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; sizes are at least 1")
