"""Models of others run as users run them."""

from collections.abc import Iterator

import pytest

from tests.quick_compile import compiled_by


@pytest.fixture(autouse=True, scope="module")
def _in_full() -> Iterator[None]:
    with compiled_by({}):
        yield
