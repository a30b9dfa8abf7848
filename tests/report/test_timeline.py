"""timeline: traces in the trace event format, whose slices are those of the schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.api.plan_file import to_json


def layered(params: Any, rows: Any) -> Any:
    def loss(params: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), rows, params)
        return (x**2).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


@pytest.fixture(scope="module")
def plan() -> autopar.Plan:
    params = jax.ShapeDtypeStruct((5, 512, 512), jnp.float32)
    rows = jax.ShapeDtypeStruct((1024, 512), jnp.float32)
    return autopar.plan(
        layered, params, rows, cluster="4xh100", mesh={"x": 4}, mode="data_parallel"
    )


def checked(trace: Any) -> list[dict[str, Any]]:
    """The slices of a trace, which must be what the format asks of complete events and metadata."""
    assert trace["displayTimeUnit"] in ("ms", "ns")
    slices: list[dict[str, Any]] = []
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["name"]
        assert type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0
            assert event["dur"] > 0
            assert isinstance(event["cat"], str)
            assert isinstance(event["args"], dict)
            slices.append(event)
    return slices


def test_a_trace_is_in_the_format(plan: autopar.Plan, tmp_path: Path) -> None:
    plan.timeline().save(tmp_path / "step.json")
    trace = json.loads((tmp_path / "step.json").read_text())
    slices = checked(trace)
    names = {
        e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"
    }
    assert set(names.values()) == {"computation", "communication"}
    assert {names[s["tid"]] for s in slices if s["cat"] == "collective"} == {"communication"}
    assert max(s["ts"] + s["dur"] for s in slices) == pytest.approx(plan.step_time_s * 1e6)
    reducing = [s for s in slices if s["cat"] == "collective"]
    assert sum(s["args"]["runs"] for s in reducing) == sum(row.runs for row in plan.collectives)
    for one in reducing:
        assert one["args"].keys() >= {"role", "bytes", "source", "reason", "runs"}
    products = [s for s in slices if "dot_general" in s["name"]]
    assert all("test_timeline.py:" in s["name"] for s in products)
    assert all(s["args"]["runs"] == 5 for s in products)
    assert any(s["name"].startswith("scan x 1") or s["name"].startswith("body x 5") for s in slices)


def test_slices_of_a_thread_are_beside_or_inside_each_other(plan: autopar.Plan) -> None:
    slices = checked(json.loads(plan.timeline().to_json()))
    for thread in (1, 2):
        open_until: list[float] = []
        for one in (s for s in slices if s["tid"] == thread):
            start, end = one["ts"], one["ts"] + one["dur"]
            while open_until and open_until[-1] <= start * (1 + 1e-12) + 1e-9:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-6
            open_until.append(end)


def test_a_timeline_that_cannot_be_written_says_so(plan: autopar.Plan, tmp_path: Path) -> None:
    with pytest.raises(autopar.AutoparError, match=r"the timeline cannot be written to .*nowhere"):
        plan.timeline().save(tmp_path / "nowhere" / "step.json")


def test_what_was_saved_loads_with_its_times(plan: autopar.Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    assert (loaded.step_time_s, loaded.serial_time_s) == (plan.step_time_s, plan.serial_time_s)
    assert loaded.step_error_s == plan.step_error_s
    assert loaded.serial_time_s == pytest.approx(
        loaded.compute_time_s + loaded.communication_time_s
    )
    assert loaded.step_time_s <= loaded.serial_time_s
    with pytest.raises(autopar.AutoparError, match="a loaded plan knows no function"):
        loaded.timeline()


def test_a_plan_of_an_older_version_loads(plan: autopar.Plan, tmp_path: Path) -> None:
    """Without errors in the report, and without errors and overlap in the cluster."""
    data = json.loads(to_json(plan.file))
    del data["report"]["errors"], data["cluster"]["errors"], data["cluster"]["device"]["overlap"]
    (tmp_path / "old.json").write_text(json.dumps(data))
    old = autopar.Plan.load(tmp_path / "old.json")
    assert old.step_error_s is None
    assert "+-" not in old.report()
    assert "Step time:" not in old.diff(plan)
    with pytest.raises(autopar.AutoparError, match="no errors are known"):
        autopar.compare(old, plan)
