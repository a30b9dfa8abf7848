"""Rules are compared by values: thousands of operators of a few elements, compiled quickly."""

from collections.abc import Iterator

import pytest

from tests.quick_compile import compiled_quickly


@pytest.fixture(autouse=True, scope="module")
def _quickly() -> Iterator[None]:
    with compiled_quickly():
        yield
