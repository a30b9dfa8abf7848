"""Models of others run as users run them."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _in_full(compiled_in_full: None) -> None:
    """XLA's own options for every test of the folder."""
