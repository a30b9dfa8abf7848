"""The roofline and the peaks of element types."""

import pytest

from cost_models import Device, compute_time_s, peak_flops_per_s

DEVICE = Device("d", 1e9, 1e10, {"float32": 1e12, "bfloat16": 4e12, "int8": 8e12, "float64": 5e11}, 1e-6)


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
