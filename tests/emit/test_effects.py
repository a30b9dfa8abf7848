"""Callbacks of a sharded program are made once, with whole values; ordered ones in the order of the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import autopar
from autopar.emit.compare import compare
from autopar.emit.hlo import collectives_of, compile_unmerged

MESHES = [{"x": 8}, {"x": 2, "y": 4}]
X = np.arange(64.0, dtype=np.float32).reshape(8, 8)
Log = list[Any]


def run(fn: Callable[..., Any], mesh: dict[str, int], *args: Any) -> Any:
    """The results of the planned function, split along the first dim of every argument, once all calls are made."""
    compiled = autopar.compile(fn, cluster="cpu8", mesh=mesh, mode="data_parallel", carry=None)
    program = compiled.plan(*args).program()
    assert any(program.values[v].placement.split_axes for v in program.inputs)
    results = jax.block_until_ready(compiled(*args))
    jax.effects_barrier()
    assert compare(program, collectives_of(compile_unmerged(compiled.lower(*args)))).explained
    return results


@pytest.mark.parametrize("mesh", MESHES)
def test_calls_are_made_once_in_order_and_answered_to_all(mesh: dict[str, int]) -> None:
    log: Log = []

    def note(name: str, value: Any) -> None:
        log.append((name, np.asarray(value).copy()))

    def ask(value: Any) -> Any:
        note("asked", value)
        return np.float32(len(log)), np.asarray(value).sum(0) > 0

    def fn(x: Any) -> Any:
        for n in range(3):
            jax.debug.callback(lambda v, n=n: note(f"first {n}", v), x * n, ordered=True)
        shapes = (jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((8,), np.bool_))
        count, positive = io_callback(ask, shapes, x, ordered=True)
        jax.debug.callback(lambda v: note("last", v), x.sum(), ordered=True)
        return x * count, positive

    scaled, positive = run(fn, mesh, X)
    assert [name for name, _ in log] == ["first 0", "first 1", "first 2", "asked", "last"]
    np.testing.assert_array_equal(log[2][1], 2 * X)
    np.testing.assert_array_equal(scaled, 4 * X)
    np.testing.assert_array_equal(positive, X.sum(0) > 0)


def test_unordered_calls_are_made_once(capsys: pytest.CaptureFixture[str]) -> None:
    log: Log = []

    def fn(x: Any) -> Any:
        jax.debug.print("sum {s} of {}", x.size, s=x.sum())
        jax.debug.print("no fields")
        jax.debug.callback(lambda v: log.append(np.asarray(v).copy()), x)
        return x + 1

    run(fn, {"x": 8}, X)
    np.testing.assert_array_equal(log, [X])
    assert sorted(capsys.readouterr().out.splitlines()) == ["no fields", f"sum {X.sum()} of 64"]


@pytest.mark.parametrize("mesh", MESHES)
def test_order_holds_through_loops_and_branches(mesh: dict[str, int]) -> None:
    log: list[tuple[str, float]] = []

    def note(name: str, value: Any) -> None:
        jax.debug.callback(lambda v: log.append((name, float(v))), value, ordered=True)

    def fn(x: Any) -> Any:
        note("start", x[0, 0])

        def body(c: Any, row: Any) -> Any:
            note("row", row.sum())
            jax.lax.cond(c > 1, lambda: note("late", c), lambda: note("early", c))
            return c + 1.0, row * 2

        count, rows = jax.lax.scan(body, 0.0, x)
        end = jax.lax.while_loop(lambda n: n < 10, lambda n: (note("while", n), n + 1)[1], count)
        note("end", end)
        return rows

    run(fn, mesh, X)
    rounds = [[("row", float(X[n].sum())), ("late" if n > 1 else "early", float(n))] for n in range(8)]
    ends = [("while", 8.0), ("while", 9.0), ("end", 10.0)]
    assert log == [("start", 0.0), *(entry for entries in rounds for entry in entries), *ends]


def test_a_training_step_that_prints() -> None:
    """Differentiated functions keep their prints; the step computes the same."""
    log: Log = []

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            h = jnp.tanh(x @ w)
            jax.debug.callback(lambda v: log.append(float(v)), jnp.max(h))
            return jnp.mean(h**2)

        value, grad = jax.value_and_grad(loss)(w)
        return w - 0.1 * grad, value

    w = np.eye(8, dtype=np.float32)
    found = run(step, {"x": 8}, w, X / 64)
    assert len(log) == 1
    for a, b in zip(found, jax.jit(step)(w, X / 64), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
