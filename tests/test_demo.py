"""The demo on short runs of the examples, and what it is made of."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from autopar import demo
from autopar.emit.measure import Training, data_parallel, plain, train, use_virtual_devices
from autopar.errors import AutoparError

DIGITS, GPT = demo.EXAMPLES
SHORT_DIGITS = replace(DIGITS, batches={"epochs": 1}, block=15, timed_blocks=1)
SHORT_GPT = replace(GPT, batches={"steps": 8}, block=4, timed_blocks=1)


def console() -> Console:
    return Console(file=StringIO(), width=120, color_system=None)


def printed(to: Console) -> str:
    assert isinstance(to.file, StringIO)
    return to.file.getvalue()


def test_the_digits() -> None:
    out = console()
    outcome = demo.measure(out, SHORT_DIGITS)
    assert len(outcome.planned.losses) == len(outcome.plain.losses) == 45
    assert len(outcome.data_parallel.losses) == 30
    np.testing.assert_allclose(outcome.planned.losses[:10], outcome.plain.losses[:10], atol=1e-5)
    np.testing.assert_allclose(
        outcome.data_parallel.losses[:10], outcome.plain.losses[:10], atol=1e-5
    )
    assert demo.largest_difference(outcome.planned, outcome.plain) < 2e-3
    assert outcome.planned.losses[-1] < 0.7 * outcome.planned.losses[0]
    assert outcome.emitted.exact, str(outcome.emitted)
    assert outcome.merged.explained, str(outcome.merged)
    assert min(t.step_time_s for t in (outcome.planned, outcome.plain, outcome.data_parallel)) > 0
    demo.show(out, SHORT_DIGITS, outcome)
    text = printed(out)
    for expected in (
        "Plan of step",
        "state['params']",
        "45/45",
        "Largest difference",
        "ReLU",
        "are the same in kind",
    ):
        assert expected in text
    for collective in outcome.report.collectives:
        assert collective.kind in text


@pytest.mark.slow
def test_the_gpt() -> None:
    out = console()
    outcome = demo.measure(out, SHORT_GPT)
    np.testing.assert_allclose(outcome.planned.losses, outcome.plain.losses, atol=1e-4)
    assert outcome.emitted.exact, str(outcome.emitted)
    assert outcome.merged.explained, str(outcome.merged)
    demo.show(out, SHORT_GPT, outcome)
    assert "['opt']" not in printed(out)


def test_a_run_says_what_it_ran_on(monkeypatch: pytest.MonkeyPatch) -> None:
    out = console()
    monkeypatch.setattr(demo, "measure", lambda *args: "outcome")
    monkeypatch.setattr(
        demo, "show", lambda to, example, outcome: to.print(f"{outcome} of {example.file}")
    )
    demo.run(out)
    text = printed(out)
    assert "8 virtual CPU devices" in text
    assert text.index(DIGITS.title) < text.index("outcome of digits_mlp.py") < text.index(GPT.title)


def test_a_difference_is_shown() -> None:
    """The largest one, of either sign, and a plan that is not what was found."""
    assert (
        demo.largest_difference(Training((1.0, 2.0, 3.0), 1.0), Training((1.0, 2.5, 2.75), 1.0))
        == 0.5
    )
    assert demo.largest_difference(Training((1.0, 2.0), 1.0), Training((1.0, 2.0, 9.0), 1.0)) == 0


def test_a_missing_example_is_named() -> None:
    with pytest.raises(AutoparError, match=r"no_such_example\.py is missing: looked for"):
        demo.load_example("no_such_example.py")


def test_devices_that_are_there_will_do() -> None:
    use_virtual_devices(8)
    use_virtual_devices(4)
    assert len(jax.devices()) == 8


def test_too_late_for_more_devices() -> None:
    jax.devices()
    with pytest.raises(
        AutoparError, match="16 virtual CPU devices are needed, but JAX runs on 8 cpu devices"
    ):
        use_virtual_devices(16)


def test_training_runs_every_batch_in_order_and_times_blocks() -> None:
    blocks: list[int] = []
    done = train(
        lambda state, x: (state + x, state * x), 0, [(x,) for x in range(1, 8)], 3, blocks.append
    )
    assert done.losses == (0.0, 2.0, 9.0, 24.0, 50.0, 90.0, 147.0)
    assert blocks == [3, 3, 1]
    assert done.step_time_s > 0


def test_the_first_block_is_not_timed() -> None:
    from time import sleep

    def step(state: int, wait: float) -> tuple[int, float]:
        sleep(wait)
        return state, wait

    assert train(step, 0, [(0.2,), (0.0,), (0.0,)], 1).step_time_s < 0.1
    assert train(step, 0, [(0.2,)], 1).step_time_s >= 0.2


def test_data_parallelism_is_the_same_step() -> None:
    def step(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        loss, grads = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(state["w"])
        return {"w": state["w"] - 0.1 * grads}, loss

    draw = np.random.default_rng(0)
    state = {"w": draw.normal(size=(4,)).astype(np.float32)}
    batch = draw.normal(size=(16, 4)).astype(np.float32), draw.normal(size=16).astype(np.float32)
    sharded, whole = data_parallel(step, 2, 8)(state, *batch), plain(step)(state, *batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), sharded, whole)
    assert sharded[0]["w"].sharding.is_fully_replicated
    assert len(sharded[0]["w"].sharding.device_set) == 8
