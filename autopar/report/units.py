"""Units: quantities as people read them. The one place where figures are rounded."""

from __future__ import annotations

from typing import Literal

from autopar.core.sizes import rounded_bytes, three_digits

_TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))

Quantity = Literal["time", "bytes", "percent", "count"]


def format_quantity(value: float, kind: Quantity) -> str:
    """`value` with its unit and three significant digits: "1.5 ms", "3.2 GiB", "12.5 %", "1,440".

    A time is given in seconds, bytes in bytes (shown in powers of 1,024), a percentage as a fraction of 1.
    A fraction that is not 0 is never shown as 0 %, one that is not 1 never as 100 %.
    """
    match kind:
        case "time":
            return _time(value)
        case "bytes":
            return rounded_bytes(value)
        case "percent":
            return _percent(value)
        case "count":
            return f"{value:,.0f}"


def _time(seconds: float) -> str:
    if seconds == 0:
        return "0 s"
    for unit, size in _TIMES:
        # 0.9995 is what three digits round up to 1.
        if abs(seconds) >= 0.9995 * size:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{seconds / 1e-9:.2g} ns"


def _percent(fraction: float) -> str:
    percent = 100 * fraction
    if 0 < abs(percent) < 0.01:
        return "<0.01 %" if percent > 0 else ">-0.01 %"
    if 99.95 <= percent < 100:
        return ">99.9 %"
    return f"{three_digits(percent)} %"
