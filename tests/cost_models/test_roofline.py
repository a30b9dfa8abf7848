"""The roofline and the peaks of element types."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import Device, compute_time_s, peak_flops_per_s, slowest_device

DEVICE = Device(
    "d", 1e9, 1e10, {"float32": 1e12, "bfloat16": 4e12, "int8": 8e12, "float64": 5e11}, 1e-6
)
PEAK = st.floats(1e10, 1e15)
DTYPES = ["bfloat16", "float16", "int8", "float8_e4m3fn", "int32"]
ASKED = [
    "float32",
    "bfloat16",
    "int8",
    "int4",
    "bool",
    "float8_e5m2",
    "float4_e2m1fn",
    "uint64",
    "key<fry>",
]


@pytest.mark.parametrize(
    ("dtype", "peak"),
    [
        ("float32", 1e12),
        ("bfloat16", 4e12),
        ("float16", 4e12),
        ("float64", 5e11),
        ("complex128", 5e11),
        ("complex64", 1e12),
        ("int8", 8e12),
        ("uint8", 8e12),
        ("int4", 8e12),
        ("int32", 1e12),
        ("uint64", 1e12),
        ("bool", 1e12),
        ("float8_e5m2", 4e12),
        ("key<fry>", 1e12),
    ],
)
def test_types_without_a_peak_fall_back(dtype, peak):
    assert peak_flops_per_s(DEVICE, dtype) == peak


def test_the_slower_of_computing_and_moving_counts():
    assert compute_time_s(2e12, 1e9, "float32", DEVICE) == pytest.approx(2 + 1e-6)
    assert compute_time_s(1e9, 1e10, "float32", DEVICE) == pytest.approx(1 + 1e-6)
    assert compute_time_s(2e12, 1e9, "bfloat16", DEVICE) == pytest.approx(0.5 + 1e-6)
    assert compute_time_s(0, 0, "bool", DEVICE) == 1e-6


@given(
    st.lists(st.dictionaries(st.sampled_from(DTYPES), PEAK), min_size=1, max_size=3),
    st.sampled_from(ASKED),
    st.floats(0, 1e15),
    st.floats(0, 1e12),
)
@settings(max_examples=150, deadline=None)
def test_the_slowest_device_takes_as_long_as_the_slowest_of_all(peaks, dtype, flops, size):
    devices = tuple(
        Device(
            f"d{n}",
            1e9 * (n + 1),
            1e12 / (n + 1),
            {"float32": 1e12 * (3 - n), **more},
            1e-6 * (n + 1),
        )
        for n, more in enumerate(peaks)
    )
    together = slowest_device(devices)
    longest = max(compute_time_s(flops, size, dtype, device) for device in devices)
    spread = together.launch_s - devices[0].launch_s
    assert (
        longest * (1 - 1e-9)
        <= compute_time_s(flops, size, dtype, together)
        <= longest * (1 + 1e-9) + spread
    )
    assert compute_time_s(0, 0, dtype, together) == devices[-1].launch_s
    assert together.memory_bytes == 1e9
    assert together.name.split(" + ")[0] == "d0"


def test_impossible_values_are_refused():
    with pytest.raises(ValueError, match="no float32 peak"):
        Device("d", 1, 1, {"bfloat16": 1.0}, 0)
    with pytest.raises(ValueError, match=r"'d': memory_bytes .* got 0"):
        Device("d", 0, 1, {"float32": 1.0}, 0)
    with pytest.raises(ValueError, match=r"peak_flops_per_s\[float32\]"):
        Device("d", 1, 1, {"float32": -1.0}, 0)
    with pytest.raises(ValueError, match="launch_s"):
        Device("d", 1, 1, {"float32": 1.0}, float("nan"))
    with pytest.raises(ValueError, match="flops"):
        compute_time_s(-1, 0, "float32", DEVICE)
