"""A plan on the devices of two processes, side by side over loopback."""

from __future__ import annotations

import jax
import pytest

from benchmarks import hosts
from tests.api.several import W, X, step


@pytest.mark.slow
def test_two_processes_run_one_plan() -> None:
    found = hosts.run_everywhere(hosts.same_host(2), "tests.api.several", {}, local_devices=2, timeout_s=120)
    state, losses = W, []
    for _ in range(3):
        state, loss = jax.jit(step)(state, X)
        losses.append(float(loss))
    assert found["same"] == pytest.approx(losses, rel=1e-5)
    assert found["differing"] == found["same"]  # the plan of the first process
    assert "traced different functions" in found["refused"]
    assert "different orders" in found["orders"]
