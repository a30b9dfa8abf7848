"""autopar calibrate, end to end: with a made-up clock, interrupted, and for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import jax
import pytest
from typer.testing import CliRunner

from autopar import calibrate, load_cluster
from autopar._compat import make_mesh, shard_map
from autopar.api import calibrate as calibrate_module
from autopar.api.calibrate import Calibration, NothingMeasured
from autopar.calibration.cases import (
    COLLECTIVES,
    CONVOLUTIONS,
    MOST_ARRAYS,
    PACKED_COLUMNS,
    PACKS,
    STEP_BYTES,
    Case,
    Extent,
    cases_of,
    group_meshes,
)
from autopar.calibration.clock import JaxClock, NoDifference
from autopar.calibration.collectives import between_kernels
from autopar.calibration.programs import Program, inner_rounds, program_of, straight_programs
from autopar.calibration.session import Stop, measure, stopped_by_interrupt
from autopar.cli import app
from cost_models import group
from cost_models.fit import residuals_of

FULL, QUICK = Extent(1024, 2.0**26, False, True), Extent(1024, 2.0**26, True, True)


@dataclass(frozen=True)
class MadeUpDevice:
    """What calibration asks of a device."""

    id: int
    process_index: int = 0
    device_kind: str = "toy"
    platform: str = "cpu"

    def memory_stats(self) -> None:
        return None


def made_up_clock(case: Case) -> float:
    """A machine: 1e11 operations/s, 1e10 bytes/s, 1e9 elements/s, messages of 1 GB/s; a launch takes 2 us."""
    if case.what == "collective":
        members = prod(case.mesh[a] for a in case.axes)
        return 5e-5 * members + case.size_bytes / 1e9
    if case.what == "fresh":
        return case.size_bytes / 2e9
    rate = {"product": 1e11, "moving": 1e30}.get(case.what, 1e9)
    return 2e-6 + max(case.operations / rate, case.size_bytes / 1e10)


DEVICES = tuple(MadeUpDevice(n) for n in range(8))
SENDING = tuple(case for case in cases_of(FULL, 2, 1) if case.what == "collective")
FAST = partial(calibrate, devices=DEVICES, clock=made_up_clock)


@pytest.fixture(scope="module")
def made() -> Calibration:
    return FAST(name="made-up")


def test_what_xla_packs_and_joins_is_measured_on_processors_and_gradients_of_convolutions_everywhere() -> (
    None
):
    for platform, is_cpu in (("cpu", True), ("gpu", False)):
        found = FAST(devices=[MadeUpDevice(0, platform=platform)])
        kinds = {s.kind for s in found.samples}
        assert set(CONVOLUTIONS) <= kinds
        assert ({"pack", "pack:pages", "concatenate"} <= kinds) is is_cpu
        assert (found.cluster.device.compiler == "xla_cpu") is is_cpu


def test_on_processors_cases_go_through_several_arrays() -> None:
    """Small ones through more, and none through more than a step moves; on accelerators through one."""
    cpu, accelerator = (
        cases_of(Extent(1024, 2.0**26, False, is_cpu), 1, 8) for is_cpu in (True, False)
    )
    assert {case.arrays for case in accelerator} == {1}
    moving = [case for case in cpu if case.what == "moving"]
    assert max(case.arrays for case in moving) == MOST_ARRAYS
    assert all(case.arrays == 1 or 8 * case.dims[0] * case.arrays <= STEP_BYTES for case in moving)
    collectives = [case for case in cpu if case.what == "collective" and case.dims == (256,)]
    assert {(case.kind, case.arrays) for case in collectives} == {
        (kind, MOST_ARRAYS) for kind in COLLECTIVES
    }


def test_a_made_up_machine_is_found(made: Calibration) -> None:
    device = made.cluster.device
    assert device.peak_flops_per_s["float32"] == pytest.approx(1e11, rel=0.02)
    assert device.launch_s == pytest.approx(2e-6, rel=0.05)
    assert made.missing == ()
    assert device.compiler == "xla_cpu"
    errors = [abs(residual.error) for residual in made.residuals]
    assert max(errors) < 0.05
    assert {s.what for s in made.samples} == {
        "moving",
        "fresh",
        "picking",
        "product",
        "work",
        "collective",
    }


def test_the_file_loads_and_says_the_same(made: Calibration, tmp_path: Path) -> None:
    made.write(tmp_path / "made.toml")
    cluster = load_cluster(tmp_path / "made.toml")
    assert cluster == made.cluster
    assert residuals_of(made.samples, cluster) == made.residuals


def test_plans_rest_on_the_file(made: Calibration, tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp

    import autopar

    made.write(tmp_path / "made.toml")

    def loss(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w).sum()

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 512), (4096, 512))]
    plan = autopar.plan(loss, *shapes, cluster=str(tmp_path / "made.toml"))
    # products and tanh, no less
    assert plan.step_time_s > 2 * 4096 * 512 * 512 / 1e11 / 8 + 4096 * 512 / 1e9 / 8


def test_the_report_names_every_kind(made: Calibration) -> None:
    report = made.report()
    for kind in (
        "dot_general float32",
        "exp float32",
        "gather float32",
        "all_to_all over 4",
        "axpy",
        "mean error",
    ):
        assert kind in report
    assert "Not measured" not in report
    drawn = made.plot()
    assert drawn.get_xlabel() == "measured (s)"


def run(monkeypatch: pytest.MonkeyPatch, *args: object, **keywords: Any) -> Any:
    monkeypatch.setattr(calibrate_module, "calibrate", partial(FAST, **keywords))
    return CliRunner().invoke(app, ["calibrate", *map(str, args)], catch_exceptions=False)


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file, image = tmp_path / "mine.toml", tmp_path / "mine.png"
    given = ("--cluster-name", "mine", "--output", file, "--quick", "--plot", image)
    result = run(monkeypatch, *given)
    assert result.exit_code == 0, result.stderr
    assert "Residuals of mine" in result.stdout
    assert str(file) in result.stdout
    assert load_cluster(file).name == "mine"
    assert image.stat().st_size > 1000
    refused = run(monkeypatch, "--output", tmp_path)
    assert refused.exit_code == 2
    assert "is a directory" in refused.stderr


# Ended early ----------------------------------------------------------------------------------------------------------


def interrupting(after: int) -> Callable[[Case], float]:
    """The made-up clock, with Ctrl-C pressed during a case."""
    seen: list[Case] = []

    def clock(case: Case) -> float:
        seen.append(case)
        if len(seen) == after:
            os.kill(os.getpid(), signal.SIGINT)
        return made_up_clock(case)

    return clock


def test_interrupted_it_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    before = signal.getsignal(signal.SIGINT)
    result = run(monkeypatch, "--output", file, clock=interrupting(30))
    assert signal.getsignal(signal.SIGINT) is before
    assert result.exit_code == 0, result.stderr
    assert "interrupted" in result.stdout
    assert "cases are missing" in file.read_text()
    assert load_cluster(file).device.peak_flops_per_s["float32"] == pytest.approx(1e11, rel=0.05)
    kept = FAST(clock=interrupting(30))
    assert len(kept.samples) == 30
    assert len(kept.samples) + len(kept.missing) == len(cases_of(FULL, 1, 8))
    assert {s.what for s in kept.samples} == {s.what for s in FAST().samples}  # a coarse round


def test_ended_too_early_there_is_no_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(NothingMeasured, match=r"0 measured times \(out of time\)"):
        FAST(time_limit_s=0)
    result = run(monkeypatch, "--output", tmp_path / "mine.toml", clock=interrupting(1))
    assert result.exit_code == 2
    assert "NothingMeasured" in result.stderr
    assert not (tmp_path / "mine.toml").exists()


def test_a_second_interrupt_ends_at_once() -> None:
    stop = Stop(float("inf"))
    with stopped_by_interrupt(stop):
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.reason == "interrupted"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_what_cannot_be_measured_is_missing_with_its_reason() -> None:
    def clock(case: Case) -> float:
        if case.dtype != "float32":
            raise TypeError(f"no {case.dtype} here\nand more")
        return made_up_clock(case)

    made = FAST(clock=clock)
    assert all(reason.endswith("here") for _, reason in made.missing)
    assert set(made.cluster.device.peak_flops_per_s) == {"float32"}
    assert "no bfloat16 here" in made.report()

    def broken(case: Case) -> float:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        FAST(clock=broken)


def test_all_processes_end_at_the_same_case() -> None:
    """One that is not told to end does, if another is."""
    asked: list[float] = []

    def agree(mine: float) -> float:
        asked.append(mine)
        return 1.0 if len(asked) > 5 else mine

    measured = measure(cases_of(QUICK, 1, 8), made_up_clock, Stop(float("inf")), agree=agree)
    assert len(measured.samples) == 5
    assert {reason for _, reason in measured.missing} == {"ended by another process"}


@pytest.mark.parametrize("ever", [False, True])
def test_collectives_that_stalled_are_measured_again_behind_all_others(ever: bool) -> None:
    """One takes a thousand times as long, once or ever; others of its size four times, which is no stall."""
    sizes = {case.size_bytes for case in SENDING}
    largest = [case for case in SENDING if case.size_bytes == max(sizes)]
    asked: list[Case] = []

    def clock(case: Case) -> float:
        asked.append(case)
        slow = 4.0 if case in largest else 1.0
        if case == largest[0] and (ever or asked.count(case) == 1):
            slow = 1000.0
        return slow * made_up_clock(case)

    measured = measure(SENDING, clock, Stop(float("inf")))
    assert asked == [*SENDING, largest[0]]
    expected = [case for case in SENDING if not (ever and case == largest[0])]
    times = [made_up_clock(case) * (4.0 if case in largest else 1.0) for case in expected]
    assert measured.samples == tuple(
        case.sample(time) for case, time in zip(expected, times, strict=True)
    )
    reason = "took more than 5 times as long a byte as a smaller one"
    assert measured.missing == (((largest[0], reason),) if ever else ())


def test_what_stalled_and_cannot_be_measured_again_is_missing_once() -> None:
    """Whatever is said of it the second time, nothing rests on the first."""
    asked: list[Case] = []

    def clock(case: Case) -> float:
        asked.append(case)
        if asked.count(case) == 2:
            raise NoDifference("no longer there")
        return made_up_clock(case) * (1000.0 if case == SENDING[-1] else 1.0)

    measured = measure(SENDING, clock, Stop(float("inf")), failures=(NoDifference,))
    assert measured.missing == ((SENDING[-1], "no longer there"),)
    assert len(measured.samples) == len(SENDING) - 1


def test_what_stalled_and_there_is_no_time_to_measure_again_is_missing() -> None:
    stop = Stop(float("inf"))
    asked: list[Case] = []

    def clock(case: Case) -> float:
        asked.append(case)
        stop.asked = len(asked) == len(SENDING)
        return made_up_clock(case) * (1000.0 if case == SENDING[-1] else 1.0)

    assert SENDING[-1].size_bytes > min(case.size_bytes for case in SENDING)
    measured = measure(SENDING, clock, stop)
    assert len(asked) == len(SENDING) == len(measured.samples) + 1
    ((case, reason),) = measured.missing
    assert (case, reason[:14]) == (SENDING[-1], "took more than")


# Cases ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("processes", "local"), [(1, 1), (1, 8), (2, 2), (4, 1), (1, 6)])
def test_cases_are_distinct_and_groups_fit(processes: int, local: int) -> None:
    cases = cases_of(FULL, processes, local)
    assert len(set(cases)) == len(cases)
    assert set(cases_of(QUICK, processes, local)) < set(cases) or (processes, local) != (1, 8)
    topology = FAST().cluster.topology
    for mesh, axes in group_meshes(processes, local):
        assert prod(mesh) == processes * local
        assert group(topology, mesh, axes).size == prod(mesh[a] for a in axes) > 1
    assert any(case.what == "collective" for case in cases) == (processes * local > 1)


@pytest.mark.parametrize(
    "case",
    [
        Case("product", "dot_general", (1, 4, 6, 5)),
        Case("moving", "axpy", (16,)),
        Case("picking", "gather", (8, 4, 6)),
        Case("picking", "scatter-add", (8, 4, 6)),
        Case("work", "conv_general_dilated:window", (2, 4, 3, 2, 2)),
    ],
    ids=str,
)
def test_rounds_within_rounds_are_as_many(case: Case) -> None:
    """Three rounds at once, twice, are six: so every round needs the one before."""
    import jax
    import numpy as np

    devices = jax.devices()[:1]
    inner, plain = program_of(case, devices, 3), program_of(case, devices)
    for a, b in zip(
        inner.run(np.int32(2), *inner.operands),
        plain.run(np.int32(6), *plain.operands),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)
    assert inner_rounds(case, "gpu") > inner_rounds(case, "cpu") == 1


@pytest.mark.parametrize(
    "case",
    [
        Case("product", "dot_general", (1, 4, 6, 5)),
        Case("moving", "axpy", (16,)),
        Case("work", "reduce_sum", (8, 4)),
        Case("work", "reduce_max:last", (8, 4)),
        Case("work", "threefry2x32", (16,)),
        Case("work", "transpose", (8, 8)),
        Case("work", "transpose:rows", (4, 2, 8)),
        Case("work", "pack", (8, 4)),
        Case("work", "pack:pages", (8, 4)),
        Case("work", "concatenate", (8, 4)),
        Case("work", "conv_general_dilated:window", (2, 4, 3, 2, 2)),
        Case("work", "select_and_scatter_add", (2, 4, 2)),
    ],
    ids=str,
)
def test_outside_of_loops_the_last_operands_are_the_results(case: Case) -> None:
    """Of each of two arrays; the other operands are as they were, and the program beside it changes none."""
    import jax
    import numpy as np

    once, _ = straight_programs(case, jax.devices()[:1])
    twice, nothing = straight_programs(replace(case, arrays=2), jax.devices()[:1])
    given = [np.asarray(operand) for operand in twice.operands]
    one, two = (
        list(map(np.asarray, program.run(1, *program.operands))) for program in (once, twice)
    )
    assert (once.inner, twice.inner, nothing.inner) == (1, 2, 2)
    for made, same in zip((*one, *one), two, strict=True):
        np.testing.assert_array_equal(made, same)
    for before, after in zip(given, nothing.run(1, *nothing.operands), strict=True):
        np.testing.assert_array_equal(before, np.asarray(after))
    changed = [n for n, made in enumerate(one) if not np.array_equal(made, given[n])]
    assert len(changed) == 1
    if case.kind in PACKS:
        np.testing.assert_allclose(one[2], given[0].T @ given[1], rtol=1e-5)
    if case.kind == "transpose":
        np.testing.assert_array_equal(one[1], given[0].T)
    if case.kind == "transpose:rows":
        np.testing.assert_array_equal(one[1], given[0].swapaxes(0, 1))
    if case.kind == "reduce_sum":
        np.testing.assert_allclose(one[1], given[0].sum(0), rtol=1e-5)
    if case.kind == "reduce_max:last":
        np.testing.assert_array_equal(one[1], given[0].max(1))


HLO_KINDS = {"permute": "collective-permute"}
"""How HLO calls collectives, where that is not their name with hyphens."""


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("members", [2, 4])
def test_collectives_run_between_kernels_which_are_timed_alone_too(kind: str, members: int) -> None:
    """As many collectives as arrays, none combined and nothing copied; the program beside them communicates nothing."""
    import jax
    import numpy as np

    case = Case("collective", kind, (64,), mesh=(1, 8 // members, members), axes=(2,), arrays=3)
    between, kernels = straight_programs(case, jax.devices())
    given = [np.asarray(operand).reshape(8 // members, members, -1) for operand in between.operands]
    name = HLO_KINDS.get(kind, kind.replace("_", "-"))
    assert (between.inner, kernels.inner) == (3, 3)
    for text, count in zip(compiled_texts(case), (3, 0), strict=True):
        assert text.count(f" {name}(") == count
        assert " copy(" not in text
    made = [np.asarray(result) for result in between.run(1, *between.operands)]
    alone = [np.asarray(result) for result in kernels.run(1, *kernels.operands)]
    waited = np.full((8, 1), 0.001, np.float32)
    for n in range(0, 6, 2):
        sent = given[n] * 0.999 + waited.reshape(8 // members, members, 1)
        result = np.stack([communicated(kind, of_group) for of_group in sent]) * 0.999 + 0.001
        np.testing.assert_array_equal(made[n], given[n].ravel())
        np.testing.assert_allclose(made[n + 1], result.ravel(), rtol=1e-5)
        waited = result.reshape(8, -1)[:, :1] * 0.001
    for before, after in zip(given, alone, strict=True):
        np.testing.assert_allclose(after, before.ravel() * 0.999 + 0.001, rtol=1e-5)


def compiled_texts(case: Case) -> list[str]:
    """What XLA makes of the collective between kernels, and of these alone."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    names = tuple(f"axis{n}" for n in range(len(case.mesh)))
    mesh, spec = make_mesh(case.mesh, names, jax.devices()), PartitionSpec(names)
    shapes, *bodies = between_kernels(case, names)
    sharding = NamedSharding(mesh, spec)
    given = [
        jax.ShapeDtypeStruct((shape[0] * mesh.size,), dtype, sharding=sharding)
        for shape, dtype in shapes
    ]
    specs = (spec,) * len(given)
    programs = (shard_map(body, mesh, specs, specs, check_vma=False) for body in bodies)
    donated = tuple(range(len(given)))
    jitted = (jax.jit(program, donate_argnums=donated, keep_unused=True) for program in programs)
    return [program.lower(*given).compile().as_text() or "" for program in jitted]


def communicated(kind: str, of_group: Any) -> Any:
    """What the members of one group, who hold the rows, have after the collective."""
    import numpy as np

    members = len(of_group)
    if kind == "all_to_all":
        return of_group.reshape(members, members, -1).swapaxes(0, 1).reshape(members, -1)
    if kind == "reduce_scatter":
        return of_group.sum(0).reshape(members, -1)
    if kind == "permute":
        return np.roll(of_group, 1, axis=0)
    return np.tile(of_group.sum(0) if kind == "all_reduce" else of_group.ravel(), (members, 1))


def test_programs_that_are_compared_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a host that gets slower all the time slows both: one takes 4 ms and the other 3.8 ms, and then ever longer.

    Those that take a second take one turn.
    """
    now, calls = 0.0, list[str]()

    def takes(name: str, seconds: float) -> Program:
        def run(times: Any) -> tuple[Any, ...]:
            nonlocal now
            calls.append(name)
            now += int(times) * seconds * (1 + len(calls) / 20)
            return ()

        return Program(run, (), 2)

    module = sys.modules[JaxClock.__module__]
    monkeypatch.setattr(module, "perf_counter", lambda: now)
    monkeypatch.setattr(
        module, "straight_programs", lambda *_: (takes("case", 4e-3), takes("beside", 3.8e-3))
    )
    longer_s = JaxClock(DEVICES, float, 0.01, 5)(Case("collective", "all_reduce", (64,)))
    assert calls[-10:] == ["case", "beside"] * 5
    assert 0.0 < longer_s < 2e-4
    calls.clear()
    monkeypatch.setattr(
        module, "straight_programs", lambda *_: (takes("case", 3.0), takes("beside", 1.0))
    )
    longer_s = JaxClock(DEVICES, float, 0.01, 5)(Case("collective", "all_reduce", (64,)))
    # to warm up, to know how long, and once
    assert calls == [
        "case",
        "beside",
        "case",
        "case",
        "beside",
    ]
    assert longer_s == pytest.approx((3 * 1.2 - 1.25) / 2)


def test_what_packing_takes_is_what_a_product_takes_longer() -> None:
    case = Case("work", "pack", (8, 4), arrays=3)
    assert case.beside is not None
    assert case.beside.operations == 2.0 * 8 * 4 * PACKED_COLUMNS
    assert case.beside.arrays == 3
    assert Case("work", "transpose", (8, 4)).beside is None


# For real -------------------------------------------------------------------------------------------------------------

SMALL = Extent(64, 2.0**16, False, True)
REAL = f"""
import json, sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
from autopar.calibration.cases import Extent, cases_of
from autopar.calibration.collectives import between_kernels
from autopar.calibration.clock import JaxClock, NoDifference, agreement, sorted_devices
clock = JaxClock(sorted_devices(None), agreement(), 1e-4, 2)
times = []
for case in cases_of({SMALL!r}, 1, 4):
    try:
        times.append(clock(case))
    except NoDifference:
        times.append(1.0)
print(json.dumps(times))
"""


@pytest.mark.slow
def test_every_case_runs() -> None:
    run = subprocess.run(
        [sys.executable, "-c", REAL], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    times = json.loads(run.stdout)
    assert len(times) == len(cases_of(SMALL, 1, 4))
    assert all(0 < time_s < 10 for time_s in times)


@pytest.mark.slow
def test_a_quick_calibration_for_real(tmp_path: Path) -> None:
    """On four virtual devices: a file that loads, whose model is near what was measured."""
    command = [
        sys.executable,
        "-m",
        "autopar",
        "calibrate",
        "--quick",
        "--time-limit",
        "60",
        "--output",
        "real.toml",
    ]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    cluster = load_cluster(tmp_path / "real.toml")
    assert cluster.device_count == 4
    assert 1e9 < 4 * cluster.device.peak_flops_per_s["float32"] < 1e13
    assert cluster.device.efficiency is not None
    assert {terms.members for terms in cluster.topology.levels[0].terms} == {2, 4}


def test_a_difference_that_is_none_is_said() -> None:
    import jax

    clock = JaxClock(tuple(jax.devices()[:1]), lambda seconds: 1.0, 1e-4, 2)
    with pytest.raises(NoDifference):
        clock(Case("fresh", "scale", (64,)))


def test_the_mesh_that_the_user_has_set_is_not_that_of_what_is_measured() -> None:
    """JAX would refuse what runs on other devices than its."""
    none_set: list[bool] = []

    def clock(case: Case) -> float:
        none_set.append(jax.sharding.get_mesh().empty)
        return made_up_clock(case)

    with jax.set_mesh(jax.make_mesh((1,), ("q",))):
        FAST(clock=clock, quick=True)
    assert none_set
    assert all(none_set)
