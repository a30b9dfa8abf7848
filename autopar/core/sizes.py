"""Sizes in bytes as people read them: in reports to three digits, in errors with the exact number beside them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def rounded_bytes(size: float) -> str:
    """`size` to three significant digits, in powers of 1,024: "3.2 GiB"."""
    exponent = 0
    while abs(size) >= 1023.5 and exponent < len(_UNITS) - 1:
        size /= 1024
        exponent += 1
    return f"{three_digits(size)} {_UNITS[exponent]}"


def exact_bytes(size: float) -> str:
    """As `rounded_bytes`, and the number of bytes where that is another: "74.5 GiB (80,000,000,000 bytes)"."""
    shown = rounded_bytes(size)
    number, unit = shown.split()
    if float(number.replace(",", "")) * 1024 ** _UNITS.index(unit) == size:
        return shown
    return f"{shown} ({size:,.0f} bytes)"


def three_digits(value: float) -> str:
    """Three significant digits, no exponent, no zeros behind the point."""
    decimals = next((d for d, top in enumerate((99.95, 9.995, 0.9995)) if abs(value) >= top), 3)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
