"""Eight virtual CPU devices for every test, set before JAX starts its backend; what makes the suite quick."""

import gc
from collections.abc import Iterator

import jax
import pytest
from hypothesis import HealthCheck, settings

from tests.quick_compile import AS_FUSED, QUICK, compiled_by

jax.config.update("jax_num_cpu_devices", 8)
# Collections took 9 % of the CPU time (15 of 167 s, measured on a tenth of the suite); they find next to nothing.
gc.set_threshold(20_000, 20, 20)
# No test may fail because the machine is busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test comes first: at the end all workers but one would wait for it."""
    items.sort(key=lambda item: "test_trade_offs_runs" not in item.nodeid)


@pytest.fixture(autouse=True, scope="session")
def _compiled_quickly() -> Iterator[None]:
    """Compiling took half of the CPU time of what runs in the tests' own process."""
    with compiled_by(QUICK):
        yield


@pytest.fixture(scope="module")
def fused_as_ever() -> Iterator[None]:
    """For modules that look at the kernels that XLA makes, and at the memory that it sets aside for them."""
    with compiled_by(AS_FUSED):
        yield
