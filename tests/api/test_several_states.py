"""States on the devices of two processes, side by side over loopback."""

from __future__ import annotations

import jax
import pytest

from benchmarks import hosts
from tests.api.several_states import X, losses, make_state, step


@pytest.mark.slow
def test_two_processes_make_and_place_one_state() -> None:
    found = hosts.run_everywhere(
        hosts.same_host(2), "tests.api.several_states", {}, local_devices=2, timeout_s=120
    )
    wanted = losses(jax.jit(step), make_state(jax.random.key(5)), X)
    for name in ("born", "placed", "moved"):
        assert found[name] == pytest.approx(wanted, rel=1e-5)
    assert found["is in place"]
    assert found["shards"] == [
        "(slice(0, 8, None), slice(0, 2, None))",
        "(slice(0, 8, None), slice(2, 4, None))",
    ]
