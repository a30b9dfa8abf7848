"""The trainer: what it gives is what the loop by hand gives; from a checkpoint on too, and what it says of it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar.checkpoint import Checkpoints
from autopar.errors import InvalidOption

QUIET = autopar.Trainer(show=False)
W = np.linspace(-1, 1, 16 * 4, dtype=np.float32).reshape(16, 4)


def step(w: Any, x: Any, y: Any) -> tuple[Any, Any]:
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
    return w - 0.1 * gradient, loss


def batch(n: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(n)
    return draw.normal(size=(8, 16)).astype(np.float32), draw.normal(size=(8, 4)).astype(np.float32)


def by_hand(steps: int, first: int = 0) -> tuple[Any, list[float]]:
    run, w, losses = jax.jit(step), W, []
    for n in range(first, first + steps):
        w, loss = run(w, *batch(n))
        losses.append(float(loss))
    return w, losses


class Loader:
    """Batches with a position, as `autopar.data.loader` has one."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.position = self.position + 1
        return batch(self.position - 1)

    def get_state(self) -> dict[str, int]:
        return {"position": self.position}

    def set_state(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def lines_in(directory: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_it_does_what_the_loop_by_hand_does() -> None:
    seen: list[tuple[int, float]] = []
    fitted = QUIET.fit(
        jax.jit(step),
        W,
        map(batch, count()),
        5,
        hooks=[lambda n, _, loss: seen.append((n, float(loss)))],
    )
    w, losses = by_hand(5)
    np.testing.assert_array_equal(fitted.state, w)
    assert seen == list(enumerate(losses, start=1))
    assert (fitted.step, fitted.figures["loss"], fitted.preempted) == (5, losses[-1], False)


@pytest.mark.parametrize("make", [Loader, lambda: [batch(n) for n in range(9)]])
def test_it_goes_on_from_a_checkpoint_with_the_batches_that_follow(
    tmp_path: Path, make: Any
) -> None:
    for steps in (4, 7):
        with Checkpoints(tmp_path, every=3) as checkpoints:
            fitted = QUIET.fit(jax.jit(step), W, make(), steps, checkpoint=checkpoints)
        assert fitted.step == steps
    np.testing.assert_array_equal(fitted.state, by_hand(7)[0])

    with Checkpoints(tmp_path) as checkpoints:
        again = QUIET.fit(jax.jit(step), W, make(), 7, checkpoint=checkpoints)
    assert (again.step, again.figures) == (7, {})
    np.testing.assert_array_equal(again.state, fitted.state)


def test_a_plan_places_or_makes_its_state_and_is_kept(tmp_path: Path) -> None:
    plan = autopar.plan(step, W, *batch(0), cluster="cpu8", mesh={"x": 8}, donate_argnums=0)
    with Checkpoints(tmp_path) as checkpoints:
        QUIET.fit(plan, lambda: jnp.asarray(W), Loader(), 3, checkpoint=checkpoints)
        kept = checkpoints.plan()
        fitted = QUIET.fit(plan, W, Loader(), 6, checkpoint=checkpoints)
    assert kept is not None
    assert kept.file == plan.file
    assert fitted.state.sharding == plan.in_shardings()[0]
    np.testing.assert_allclose(fitted.state, by_hand(6)[0], rtol=1e-5)
    placed = QUIET.fit(plan, W, Loader(), 2)
    np.testing.assert_allclose(placed.state, by_hand(2)[0], rtol=1e-5)


def test_a_hook_or_the_end_of_the_batches_ends_the_job_with_a_checkpoint(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        hook = QUIET.fit(step, W, Loader(), 9, checkpoint=checkpoints, hooks=[lambda n, *_: n == 2])
        assert (hook.step, checkpoints.latest_step()) == (2, 2)
        end = QUIET.fit(step, W, [batch(n) for n in range(4)], 9, checkpoint=checkpoints)
        assert (end.step, checkpoints.latest_step()) == (4, 4)


def test_sigterm_ends_the_job_with_a_checkpoint(tmp_path: Path) -> None:
    def hook(n: int, _state: Any, _loss: Any) -> None:
        if n == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with Checkpoints(tmp_path) as checkpoints:
        fitted = QUIET.fit(step, W, Loader(), 9, checkpoint=checkpoints, hooks=[hook])
    assert fitted.preempted
    assert fitted.step < 9
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest_step() == fitted.step


def test_figures_are_lines_and_those_behind_the_checkpoint_go(tmp_path: Path) -> None:
    trainer = autopar.Trainer(tmp_path / "log", log_every=2, show=False)
    trainer.fit(step, W, Loader(), 5)
    assert [line["step"] for line in lines_in(tmp_path / "log")] == [2, 4, 5]

    with (tmp_path / "log" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')  # killed while it wrote
    with Checkpoints(tmp_path / "kept", every=3) as checkpoints:
        QUIET.fit(step, W, Loader(), 3, checkpoint=checkpoints)
        fitted = trainer.fit(step, W, Loader(), 8, checkpoint=checkpoints)
    lines = lines_in(tmp_path / "log")
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert lines[-1] == {"step": 8, **fitted.figures}
    losses = by_hand(8)[1]
    assert [line["loss"] for line in lines] == pytest.approx(losses[1::2], rel=1e-6)
    assert all(line["examples_per_s"] > 0 and line["memory_bytes"] > 2**20 for line in lines)
    assert all(0 <= line["wait_share"] < 1 for line in lines)


def test_several_figures_are_told_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboardX")

    def two(w: Any, x: Any) -> Any:
        return w, {"loss": x.sum(), "norm": abs(w).max()}

    fitted = autopar.Trainer(tmp_path, log_every=1).fit(two, W, [np.ones(8)] * 2, 2)
    assert (fitted.figures["loss"], fitted.figures["norm"]) == (8, 1)
    shown = capsys.readouterr().out.splitlines()  # of a pipe: a line each time, and no bar
    assert [line[:22] for line in shown] == [f"step {n}  loss 8  norm 1" for n in (1, 2)]
    assert all("examples/s  wait " in line for line in shown)
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_log_every_is_checked() -> None:
    with pytest.raises(InvalidOption, match="log_every is 0"):
        autopar.Trainer(log_every=0).fit(step, W, [], 1)
