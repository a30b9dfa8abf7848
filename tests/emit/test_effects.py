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
from autopar.inspect.compare import compare
from autopar.inspect.hlo import collectives_of, compile_unmerged

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
    rounds = [
        [("row", float(X[n].sum())), ("late" if n > 1 else "early", float(n))] for n in range(8)
    ]
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


def test_booleans_and_negative_numbers_in_one_answer() -> None:
    """Booleans cannot be added, complex numbers have no largest, and 0 is larger than what is below it."""
    answer = (
        np.ones(4, bool),
        np.full(4, -2, np.int8),
        np.full(4, -1.5, np.float32),
        np.full(4, -1 - 2j, np.complex64),
    )
    shapes = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in answer)
    found = run(lambda x: (io_callback(lambda _: answer, shapes, x), x), {"x": 2, "y": 4}, X)[0]
    for wanted, given in zip(answer, found, strict=True):
        assert wanted.dtype == given.dtype
        np.testing.assert_array_equal(wanted, given)


def test_order_holds_around_a_rematerialised_block() -> None:
    log: list[str] = []

    def note(name: str, value: Any) -> None:
        jax.debug.callback(lambda _: log.append(name), value, ordered=True)

    def fn(x: Any) -> Any:
        def block(x: Any) -> Any:
            note("inside", x[1])
            return jnp.sin(x)

        note("before", x[0])
        x = jax.checkpoint(block)(x)
        note("behind", x[0])
        return x

    run(fn, {"x": 8}, X)
    assert log == ["before", "inside", "behind"]


@pytest.mark.parametrize("ordered", [True, False])
def test_calls_in_the_test_of_a_while_loop_are_made(ordered: bool) -> None:
    log: list[tuple[str, int]] = []

    def note(name: str, value: Any) -> None:
        jax.debug.callback(lambda v: log.append((name, int(v))), value, ordered=ordered)

    def fn(x: Any) -> Any:
        def going(state: Any) -> Any:
            note("test", state[1])
            return state[1] < 2

        def body(state: Any) -> Any:
            note("body", state[1])
            return state[0] * 2, state[1] + 1

        return jax.lax.while_loop(going, body, (x, 0))

    found, _ = run(fn, {"x": 8}, X)
    np.testing.assert_array_equal(found, 4 * X)
    wanted = [("test", 0), ("body", 0), ("test", 1), ("body", 1), ("test", 2)]
    assert log == wanted if ordered else sorted(log) == sorted(wanted)


def test_a_key_comes_to_a_callback_as_its_data() -> None:
    log: Log = []

    def fn(key: Any, x: Any) -> Any:
        jax.debug.callback(lambda k: log.append(np.asarray(k).copy()), key)
        return x + 1

    run(fn, {"x": 8}, jax.random.key(7), X)
    np.testing.assert_array_equal(log, [jax.random.key_data(jax.random.key(7))])


# without effects -----------------------------------------------------------------------------------------------------


def counted(log: Log, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` on the host, by a callback without effects that writes down what it is given."""

    def on_host(*values: Any) -> Any:
        log.append([np.asarray(value).copy() for value in values])
        return function(*map(np.asarray, values))

    def call(*values: Any) -> Any:
        shapes = jax.eval_shape(function, *values)
        return jax.pure_callback(on_host, shapes, *values, vmap_method="sequential")

    return call


def several(log: Log) -> Callable[..., Any]:
    """Two calls alike, one that nobody reads, one in a loop, one in a branch, one in a block that is computed again."""
    rows = counted(log, lambda x: (x.sum(0), x > 20, (x + 1j * x).astype(np.complex64)))
    double = counted(log, lambda x: x * 2)

    def fn(x: Any) -> Any:
        total, large, both = rows(x)
        double(x + 5)
        c, _ = jax.lax.scan(lambda c, row: (c + double(row), None), total, x)
        branch = jax.lax.cond(c[0] > 0, lambda: double(total), lambda: total)
        block = jax.checkpoint(lambda x: jnp.sin(double(jax.lax.stop_gradient(x)) * x))
        return (
            jax.grad(lambda x: block(x).sum())(x),
            large,
            both,
            c,
            branch,
            double(x) + double(x),
            x,
        )

    return fn


@pytest.mark.parametrize("mesh", MESHES)
def test_calls_without_effects_are_made_as_often_as_by_jit_and_with_the_same(
    mesh: dict[str, int],
) -> None:
    logs: list[Log] = [[], []]
    wanted = jax.block_until_ready(jax.jit(several(logs[0]))(X))
    found = run(several(logs[1]), mesh, X)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert len(logs[1]) == len(logs[0]) > 12
    given = [sorted(str([value.tolist() for value in call]) for call in log) for log in logs]
    assert given[0] == given[1]


def test_a_call_without_effects_and_operands_is_made_once() -> None:
    log: Log = []
    answer = counted(log, lambda: np.arange(8.0, dtype=np.float32))
    scaled, _ = run(lambda x: (x * answer(), x), {"x": 8}, X)
    np.testing.assert_array_equal(scaled, X * np.arange(8))
    assert len(log) == 1
