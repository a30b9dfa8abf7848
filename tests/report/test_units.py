import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.report.units import format_quantity


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (0, "time", "0 s"),
        (1.5e-3, "time", "1.5 ms"),
        (0.99951, "time", "1 s"),
        (0.999, "time", "999 ms"),
        (12.3456, "time", "12.3 s"),
        (1234.5, "time", "1,234 s"),
        (2.5e-6, "time", "2.5 us"),
        (4.2e-9, "time", "4.2 ns"),
        (3e-13, "time", "0.0003 ns"),
        (0, "bytes", "0 B"),
        (1023, "bytes", "1,023 B"),
        (1024, "bytes", "1 KiB"),
        (3.2 * 2**30, "bytes", "3.2 GiB"),
        (1024**2 - 1, "bytes", "1 MiB"),
        (2**70, "bytes", "1,024 EiB"),
        (0, "percent", "0 %"),
        (0.125, "percent", "12.5 %"),
        (1e-9, "percent", "<0.01 %"),
        (-1e-9, "percent", ">-0.01 %"),
        (0.99999, "percent", ">99.9 %"),
        (1, "percent", "100 %"),
        (1440, "count", "1,440"),
    ],
)
def test_quantities(value: float, kind: str, expected: str) -> None:
    assert format_quantity(value, kind) == expected


@given(st.floats(1e-9, 1e6))
def test_a_time_reads_back_within_half_a_digit(seconds: float) -> None:
    number, unit = format_quantity(seconds, "time").split()
    size = {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    assert float(number.replace(",", "")) * size == pytest.approx(seconds, rel=0.0051)
    assert unit == "s" or float(number) < 1000


@given(st.integers(1, 2**60))
def test_bytes_read_back_within_half_a_digit(size: int) -> None:
    number, unit = format_quantity(size, "bytes").split()
    power = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)
    assert float(number.replace(",", "")) * 1024**power == pytest.approx(size, rel=0.0051)
    assert re.fullmatch(r"[\d,]+(\.\d+)?", number)
