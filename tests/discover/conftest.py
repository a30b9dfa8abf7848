"""The process in which operators are tried compiles as quickly as the tests do."""

from collections.abc import Iterator

import pytest

from autopar.discover import process
from tests.quick_compile import QUICK

FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())
_environment = process._environment


@pytest.fixture(autouse=True, scope="module")
def _tried_quickly() -> Iterator[None]:
    """Where it is started from these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "_environment", lambda: _environment() | {"XLA_FLAGS": FLAGS})
        yield
