"""A plan on the devices of two processes, side by side over loopback."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from benchmarks import hosts
from tests.api.several import W, X, noise, step


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What two processes found; they are started once."""
    return hosts.run_everywhere(
        hosts.same_host(2), "tests.api.several", {}, local_devices=2, timeout_s=240
    )


@pytest.fixture(scope="module")
def losses() -> list[float]:
    """Of three steps in one process."""
    state, found = W, []
    for _ in range(3):
        state, loss = jax.jit(step)(state, X)
        found.append(float(loss))
    return found


def test_two_processes_run_one_plan(found: dict[str, Any], losses: list[float]) -> None:
    assert found["same"] == pytest.approx(losses, rel=1e-5)
    assert found["differing"] == found["same"]  # the plan of the first process
    assert "traced different functions" in found["functions"]
    assert "give the devices in different orders" in found["orders"]


def test_values_that_differ_are_refused_by_all_alike(found: dict[str, Any]) -> None:
    mine, theirs = found["told"]
    assert mine == theirs
    for message, name in zip(mine, ("x", "rate", "w['a']", "constant[0]", "key", "x"), strict=True):
        assert f"different values of {name} (process 0 / process 1)." in message
        assert "jax.make_array_from_process_local_data" in message
    assert found["noisy"] == pytest.approx(float(noise(jax.random.key(3), X)), rel=1e-4)


def test_arrays_over_all_processes_are_not_compared(found: dict[str, Any]) -> None:
    """Nothing is exchanged for them; for a host value beside them one digest is, of 32 bytes."""
    assert found["counted"] == [0, 32]


@pytest.mark.parametrize(("plan", "rows"), [("split", [0, 4]), ("whole", [0, 8])])
def test_rows_of_each_process_make_the_batch(
    plan: str, rows: list[int], found: dict[str, Any], losses: list[float]
) -> None:
    assert found[f"{plan} rows"] == [rows, list(X.shape)]
    assert found[f"{plan} loss"] == pytest.approx(losses[0], rel=1e-5)
    assert "the plan is for x: float32[8, 16], given is x: float32[" in found[f"{plan} half"]


def test_another_shape_than_asked_for_is_refused(found: dict[str, Any]) -> None:
    assert "x is an array over several processes, float32[4, 16]" in found["asked"]
    assert "a plan was asked for float32[8, 16]" in found["asked"]
    assert "plan.in_slices()" in found["asked"]
