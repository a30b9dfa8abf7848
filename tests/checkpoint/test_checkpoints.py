"""Checkpoints of one process: what goes in comes out, anywhere; when they are due; what is refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest

import autopar
from autopar.checkpoint import Checkpoints
from autopar.errors import (
    AutoparError,
    CheckpointError,
    DamagedCheckpointWarning,
    InvalidOption,
    MissingExtra,
)
from tests.checkpoint.states import CLUSTER, X, assert_equal, make_state, planned, run, step

SPLIT = (autopar.pin("state['params']['up']", jax.P(None, "a")),)


class Moments(NamedTuple):
    """A part of a state as optax has them."""

    mean: Any
    square: Any


def saved(directory: Path, state: Any, steps: Any = (1,), **options: Any) -> None:
    """Leaves checkpoints of `state` at these steps."""
    with Checkpoints(directory, **options) as checkpoints:
        for n in steps:
            checkpoints.save(n, state, data={"row": n}, force=True)


def steps_in(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


# What goes in comes out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        jnp.arange(6.0).reshape(2, 3),
        {"a": [jnp.ones(3), (jnp.zeros(()),)], "none": None, "empty": {}},
        {7: Moments(jnp.ones((2, 2)), jnp.full((2, 2), 3.0)), 8: jnp.ones(1)},
        {"half": jnp.ones(3, jnp.bfloat16), "int": jnp.int32(3), "bool": jnp.array([True, False])},
        {"key": jax.random.key(3), "keys": jax.random.split(jax.random.key(1, impl="rbg"), 4)},
        {
            "host": np.arange(3),
            "number": np.float64(1 / 3),
            "no elements": np.zeros((0, 3), np.int8),
        },
        {"a/b": {"..": 1.0, "": 2.0, "é ": 3.0}, "a": {"b": 4.0}, "a.b": 5.0, "//c": 6.0, "%": 7.0},
        {"tokens": 10**12, "rate": 0.1, "is done": False, "no elements": jnp.zeros((4, 0))},
        make_state(),
    ],
    ids=lambda state: (
        type(state).__name__ if isinstance(state, jax.Array) else ",".join(map(str, state))
    ),
)
def test_every_kind_of_leaf_comes_back(tmp_path: Path, state: Any) -> None:
    saved(tmp_path, state)
    with Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore(state)
    assert found is not None
    assert (found.step, found.data, found.plan) == (1, {"row": 1}, None)
    assert_equal(found.state, state)


def test_a_state_goes_on_on_another_mesh_by_another_plan(tmp_path: Path) -> None:
    """Padded inside or not, split this way or that: the curve goes on, bit for bit where the plan is the same."""
    first = planned({"a": 8}, cluster=CLUSTER, constraints=SPLIT)
    compiled = first.compile()
    state, _ = run(compiled, first.init(make_state), 2)
    saved(tmp_path, state)
    _, losses = run(compiled, state, 3)

    with Checkpoints(tmp_path) as checkpoints:
        for mesh, options in (
            ({"a": 8}, {"constraints": SPLIT}),
            ({"a": 2, "b": 4}, {}),
            ({"a": 4}, {"mode": "data_parallel", "devices": jax.devices()[:4]}),
        ):
            cluster = CLUSTER if "devices" not in options else None
            plan = planned(mesh, cluster=cluster, **options)
            found = checkpoints.restore(plan)
            assert found is not None
            wanted = jax.tree.map(lambda leaf: leaf.sharding, plan.abstract())
            assert jax.tree.map(lambda leaf: leaf.sharding, found.state) == wanted
            _, again = run(plan.compile(), found.state, 3)
            assert again == pytest.approx(losses, rel=1e-5)
            assert (again == losses) or mesh != {"a": 8}


def test_the_plan_comes_back_and_runs(tmp_path: Path) -> None:
    plan = planned({"a": 8}, cluster=CLUSTER)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.plan() is None
        assert checkpoints.restore(plan) is None
        state = plan.init(make_state)
        checkpoints.save(100, state, plan=plan)

    with Checkpoints(tmp_path) as checkpoints:
        loaded = checkpoints.plan()
        assert loaded is not None
        bound = loaded.compile(step).plan(jax.eval_shape(make_state), X)
        found = checkpoints.restore(bound)
    assert bound.placements == plan.placements
    assert found is not None
    assert found.plan is not None
    assert found.plan.file == plan.file
    assert_equal(found.state, state)


def test_what_is_donated_behind_a_save_is_stored_as_it_was(tmp_path: Path) -> None:
    """Each state is written while the steps behind it reuse its memory."""
    plan = planned({"a": 8}, cluster=CLUSTER)
    compiled = plan.compile()
    state = plan.init(make_state)
    kept: dict[int, Any] = {}
    with Checkpoints(tmp_path, every=1, keep=9) as checkpoints:
        for n in range(1, 9):
            state, _ = compiled(state, X)
            kept[n] = jax.tree.map(jnp.copy, state)
            checkpoints.save(n, state)

    for n in reversed(range(1, 9)):
        with Checkpoints(tmp_path) as checkpoints:
            found = checkpoints.restore(make_state())
        assert found is not None
        assert found.step == n
        assert_equal(found.state, kept[n])
        shutil.rmtree(tmp_path / str(n))


def test_leaves_on_the_host_stay_there(tmp_path: Path) -> None:
    device = jax.devices()[0]
    there = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    state = {"w": jax.device_put(np.arange(4.0, dtype=np.float32), there)}
    saved(tmp_path, state)
    with Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore(state)
    assert found is not None
    assert found.state["w"].sharding == there
    assert_equal(found.state, state)


def test_modules_of_flax_are_states(tmp_path: Path) -> None:
    nnx = pytest.importorskip("flax.nnx", reason="needs the extra models")
    model = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
    other = nnx.Linear(3, 4, rngs=nnx.Rngs(1))
    saved(tmp_path, {"model": model})
    with Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore({"model": other})
    assert found is not None
    assert_equal(nnx.state(found.state["model"]), nnx.state(model))
    np.testing.assert_array_equal(other.kernel[...], model.kernel[...])


# When they are due ----------------------------------------------------------------------------------------------------


def test_every_so_many_steps_and_the_last_few_are_kept(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, every=2, keep=2) as checkpoints:
        due = [checkpoints.save(n, {"n": n}) for n in range(1, 9)]
        assert checkpoints.latest_step() == 8
        assert checkpoints.save(9, {"n": 9}, force=True)
        assert checkpoints.save(9, {"n": 9}, force=True)
    assert due == [False, True] * 4
    assert steps_in(tmp_path) == [8, 9]


def test_sigterm_saves_the_next_step_and_says_so(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Checkpoints(tmp_path, every=100) as checkpoints:
        assert not checkpoints.save(1, {"n": 1})
        os.kill(os.getpid(), signal.SIGTERM)
        assert checkpoints.save(2, {"n": 2})
        assert checkpoints.preempted
        assert steps_in(tmp_path) == [2]  # written, not only begun
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_loader_says_where_it_is(tmp_path: Path) -> None:
    class Loader:
        def get_state(self) -> Any:
            return {"batch": 7}

    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"n": 1}, data=Loader(), force=True)
        found = checkpoints.restore({"n": 0})
    assert found is not None
    assert found.data == {"batch": 7}


# What is refused ------------------------------------------------------------------------------------------------------


def test_another_state_is_refused_by_its_leaves(tmp_path: Path) -> None:
    saved(tmp_path, {"w": jnp.ones((3, 4)), "b": jnp.ones(4), "same": jnp.ones(2)})
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError) as refusal:
            checkpoints.restore({"w": jnp.ones((3, 5)), "c": np.int32(1), "same": jnp.ones(2)})
        found = checkpoints.restore({"w": np.ones((3, 4)), "b": np.ones(4), "same": np.ones(2)})
    message = str(refusal.value)
    assert f"step 1 in {tmp_path} is of another state" in message
    assert "state['w'] is float32[3, 4] there and float32[3, 5] here" in message
    assert "state['c'] is missing there and int32[] here" in message
    assert "state['b'] is float32[4] there and missing here" in message
    assert "same" not in message
    assert found is not None


def test_an_earlier_step_than_the_last_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, {"n": 1}, steps=(4,))
    with (
        Checkpoints(tmp_path) as checkpoints,
        pytest.raises(CheckpointError, match=r"step 2 cannot be saved in .*, where step 4 is"),
    ):
        checkpoints.save(2, {"n": 1}, force=True)
    assert steps_in(tmp_path) == [4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"state": {"name": "gpt", "w": 1}}, r"state\['name'\] is 'gpt', of type str"),
        ({"state": {"w": 1}, "data": {1, 2}}, r"data is \{1, 2\}, which JSON cannot hold"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match=message):
            checkpoints.save(1, force=True, **arguments)
        assert checkpoints.save(1, {"w": 1}, force=True)
    assert steps_in(tmp_path) == [1]


@pytest.mark.parametrize("options", [{"every": 0}, {"keep": 0}])
def test_numbers_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match=r"every is \d+ and keep is \d+"):
        Checkpoints(tmp_path, **options)


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="file is a file: name a directory"):
        Checkpoints(tmp_path / "file")


def test_orbax_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(MissingExtra, match=r"pip install 'autopar\[train\]'"):
        Checkpoints(tmp_path)


def test_a_loaded_plan_says_what_it_lacks(tmp_path: Path) -> None:
    plan = planned({"a": 8}, cluster=CLUSTER)
    plan.save(tmp_path / "plan.json")
    saved(tmp_path / "states", make_state())
    with (
        Checkpoints(tmp_path / "states") as checkpoints,
        pytest.raises(AutoparError, match="a loaded plan knows no function"),
    ):
        checkpoints.restore(autopar.Plan.load(tmp_path / "plan.json"))


# Damage ---------------------------------------------------------------------------------------------------------------


STATE = {"w": np.arange(64.0), "n": 3}


def files_of(directory: Path) -> list[Path]:
    """All files of a checkpoint but those that orbax writes at its commit, of which none is read."""
    written = (path for path in directory.rglob("*") if path.is_file())
    return [
        path for path in written if path.name not in ("commit_success.txt", "_CHECKPOINT_METADATA")
    ]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
def test_whatever_is_damaged_the_one_before_is_used(tmp_path: Path, harm: Any) -> None:
    saved(tmp_path / "good", STATE, steps=(1, 2))
    names = [path.relative_to(tmp_path / "good") for path in files_of(tmp_path / "good" / "2")]
    assert len(names) > 6
    for number, name in enumerate(names):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "good", directory)
        harm(directory / name)
        with Checkpoints(directory) as checkpoints:
            with pytest.warns(
                DamagedCheckpointWarning, match="step 2 .* is damaged: .*the one befo"
            ):
                found = checkpoints.restore(STATE)
            assert found is not None
            assert (found.step, found.data) == (1, {"row": 1})
            assert_equal(found.state, STATE)
            assert checkpoints.save(2, STATE, force=True)
        assert steps_in(directory) == [1, 2]
        assert (directory / "2.damaged").is_dir()


def test_nothing_is_begun_anew_where_all_are_damaged(tmp_path: Path) -> None:
    saved(tmp_path, STATE, steps=(1, 2))
    for n in (1, 2):
        flip(tmp_path / str(n) / "job" / "metadata")
    with (
        Checkpoints(tmp_path) as checkpoints,
        pytest.warns(DamagedCheckpointWarning),
        pytest.raises(
            CheckpointError, match=r"every checkpoint in .* is damaged \(step 2: job/met"
        ),
    ):
        checkpoints.restore(STATE)


def test_checkpoints_of_others_are_left_alone(tmp_path: Path) -> None:
    with orbax.CheckpointManager(tmp_path) as manager:
        manager.save(1, args=orbax.args.StandardSave(STATE))
    with (
        Checkpoints(tmp_path) as checkpoints,
        pytest.raises(CheckpointError, match="is no checkpoint of autopar"),
    ):
        checkpoints.restore(STATE)
    assert steps_in(tmp_path) == [1]


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("autopar.checkpoint.checkpoints._FORMAT", 7)
        saved(tmp_path, STATE)
    with (
        Checkpoints(tmp_path) as checkpoints,
        pytest.raises(CheckpointError, match="is of format 7, this version of autopar reads 1"),
    ):
        checkpoints.restore(STATE)


def test_readers_change_nothing(tmp_path: Path) -> None:
    """Not even what another job is writing."""
    saved(tmp_path, STATE, steps=(1, 2))
    shutil.copytree(tmp_path / "2", tmp_path / "3.orbax-checkpoint-tmp")
    flip(tmp_path / "2" / "job" / "metadata")
    before = sorted(path.name for path in tmp_path.iterdir())
    with (
        Checkpoints(tmp_path, read_only=True) as checkpoints,
        pytest.warns(DamagedCheckpointWarning, match="it is left out"),
    ):
        found = checkpoints.restore(STATE)
    assert found is not None
    assert found.step == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_readers_do_not_save(tmp_path: Path) -> None:
    saved(tmp_path, STATE)
    with (
        Checkpoints(tmp_path, read_only=True) as checkpoints,
        pytest.raises(InvalidOption, match="was opened read_only"),
    ):
        checkpoints.save(3, STATE, force=True)
    assert steps_in(tmp_path) == [1]


def test_what_was_not_finished_is_tidied_up(tmp_path: Path) -> None:
    saved(tmp_path, STATE)
    shutil.copytree(tmp_path / "1", tmp_path / "2.orbax-checkpoint-tmp")
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest_step() == 1
        checkpoints.save(2, STATE, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


def error_of(*command: object) -> str:
    """What a command says that fails; "" if it does not."""
    if shutil.which(str(command[0])) is None:
        return f"there is no {command[0]}"
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB: ext4 in a file that is mounted as a disk, in memory where there are no loop devices."""
    if os.geteuid() != 0:
        pytest.skip("to mount a small file system needs root")
    disk, image = tmp_path / "disk", tmp_path / "image"
    disk.mkdir()
    image.write_bytes(bytes(3 * 2**20))
    why_not = error_of("mkfs.ext4", "-q", "-O", "^has_journal", image)
    why_not = why_not or error_of("mount", "-o", "loop", image, disk)
    why_not = why_not and error_of("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk)
    if why_not:
        pytest.skip(f"a small file system cannot be mounted here: {why_not}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_said_and_the_one_before_stays(small_disk: Path) -> None:
    large = {**STATE, "w": np.random.default_rng(0).normal(size=1_000_000)}
    message = (
        r"cannot be written to .*: the disk is full\. That of step 1 is there.*Free some space"
    )
    with Checkpoints(small_disk, every=1) as checkpoints:
        checkpoints.save(1, STATE)
        checkpoints.save(2, large)
        with pytest.raises(CheckpointError, match=message):
            checkpoints.save(3, STATE)
        assert steps_in(small_disk) == [1]
        checkpoints.save(3, STATE)
        checkpoints.save(4, large)
        with pytest.raises(CheckpointError, match=r"step 4 .* the disk is full"):
            checkpoints.wait()

    with Checkpoints(small_disk) as checkpoints:
        found = checkpoints.restore(STATE)
    assert found is not None
    assert found.step == 3
    assert_equal(found.state, STATE)
