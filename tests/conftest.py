"""Eight virtual CPU devices for every test, set before JAX starts its backend; what makes the suite quick."""

import gc

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
# Collections took 9 % of the CPU time (15 of 167 s, measured on a tenth of the suite); they find next to nothing.
gc.set_threshold(20_000, 20, 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test comes first: at the end all workers but one would wait for it."""
    items.sort(key=lambda item: "test_trade_offs_runs" not in item.nodeid)
