"""Checkpoints of two processes, side by side over loopback: of one process, by two, and in one again."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from autopar.checkpoint import Checkpoints
from benchmarks import hosts
from tests.checkpoint.states import make_state, run, step


@pytest.mark.slow
def test_a_job_goes_on_in_two_processes_and_back_in_one(tmp_path: Path) -> None:
    state, _ = run(jax.jit(step), make_state(), 2)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, state, force=True)
    state, losses = run(jax.jit(step), state, 2)

    found = hosts.run_everywhere(
        hosts.same_host(2),
        "tests.checkpoint.several",
        {"directory": str(tmp_path)},
        local_devices=2,
        timeout_s=120,
    )
    assert found["step"] == 2
    assert found["shards"] == [[60, 16]] * 2
    assert found["losses"] == pytest.approx(losses, rel=1e-5)
    assert found["preempted at"] > 5
    assert found["behind damage"] == 3
    assert found["told"][0] == found["told"][1]
    assert f"step {found['preempted at']} in {tmp_path} is damaged" in found["told"][0]

    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore(make_state())
    assert restored is not None
    assert restored.step == 3
    assert restored.plan is not None
    assert dict(restored.plan.mesh.axes) == {"p": 2, "q": 2}
    _, wanted = run(jax.jit(step), state, 1)
    _, again = run(jax.jit(step), restored.state, 1)
    assert again == pytest.approx(wanted, rel=1e-5)
