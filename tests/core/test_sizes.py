import pytest

from autopar.core.sizes import exact_bytes, rounded_bytes


@pytest.mark.parametrize(
    ("size", "rounded", "exact"),
    [
        (0, "0 B", "0 B"),
        (1023, "1,023 B", "1,023 B"),
        (1024, "1 KiB", "1 KiB"),
        (40 * 2**20, "40 MiB", "40 MiB"),
        (1.5 * 2**30, "1.5 GiB", "1.5 GiB"),
        (80_000_000_000, "74.5 GiB", "74.5 GiB (80,000,000,000 bytes)"),
        (1025, "1 KiB", "1 KiB (1,025 bytes)"),
    ],
)
def test_bytes_are_rounded_and_exact_where_that_differs(
    size: float, rounded: str, exact: str
) -> None:
    assert rounded_bytes(size) == rounded
    assert exact_bytes(size) == exact
