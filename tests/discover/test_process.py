"""Operators are tried in a process of their own: what ends that, never ends, or answers nonsense, ends no planning."""

from __future__ import annotations

import io
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import sparse

import autopar
from autopar import _compat
from autopar.discover import find_rule, process, worker
from autopar.discover.process import Ended, Process
from autopar.errors import UnsupportedPrimitiveWarning
from autopar.trace import trace
from tests.api.same import SLOW, assert_same
from tests.discover.test_found import operator, primitive

DTYPES = ("float32", "bfloat16", "int8", "uint64", "bool", "complex64", "int4")


def wild(x: Any) -> list[Any]:
    """Rows of a sparse matrix that begin wherever the values say: JAX's kernel follows them out of its memory."""
    pointers = (x[:, 0] * 2**28).astype(jnp.int32)
    matrix = sparse.BCSR(
        (x[1:, 0], jnp.arange(x.shape[0] - 1), pointers), shape=(x.shape[0] - 1, x.shape[0])
    )
    return [matrix @ x + x[:-1]]


def endless(x: Any) -> list[Any]:
    return [lax.while_loop(lambda y: jnp.isfinite(y).any() | True, lambda y: y + 1, x)]


def doubled(x: Any) -> list[Any]:
    return [x * 2 + x.sum(0)]


@pytest.fixture
def own() -> Iterator[Process]:
    """A process for one test."""
    one = Process()
    yield one
    one.stop()


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch, own: Process) -> Process:
    """The process in which all operators are tried, another for one test, after which nothing is remembered."""
    monkeypatch.setattr("autopar.discover.runnable.PROCESS", own)
    return own


def program(function: Any, *shapes: tuple[int, ...]) -> str:
    return _compat.program_text(
        function, [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    )


def test_an_operator_that_ends_its_process_has_no_rule_and_is_planned() -> None:
    ends = primitive("third party ends", wild)
    x = np.linspace(0, 1e-9, 8 * 4, dtype=np.float32).reshape(8, 4)
    with pytest.warns(
        UnsupportedPrimitiveWarning,
        match=r"ends' \(test_process.* it ended its process \(exit code -",
    ):
        plan = autopar.plan(lambda x: ends.bind(x)[0] * 2, x, cluster=SLOW)
    assert_same(plan.compile()(x), jax.jit(lambda x: wild(x)[0] * 2)(x))
    assert find_rule(operator(doubled, (8, 6))) is not None  # the next one is tried again


def test_one_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, anew: Process) -> None:
    assert anew.run(0, program(doubled, (2, 3)), [[np.ones((2, 3), np.float32)]]) is not None
    monkeypatch.setattr(process, "LONGEST_S", 1.0)
    op = operator(endless, (8, 6))
    assert find_rule(op) is None
    assert find_rule.note(op) == "Tried on random operands, it took longer than 1 s."


@pytest.mark.slow
def test_sparse_matrices_are_planned_whatever_their_indices() -> None:
    """Whether their operators have rules or not."""
    pointers, columns = jnp.arange(9), jnp.arange(8)
    x, values = np.ones((8, 4), np.float32), np.arange(8, dtype=np.float32)

    def product(values: Any, x: Any) -> Any:
        return sparse.BCSR((values, columns, pointers), shape=(8, 8)) @ x

    for op in trace(product, (values, x)).graph.ops:
        find_rule(op)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsupportedPrimitiveWarning)
        assert_same(autopar.compile(product, cluster=SLOW)(values, x), jax.jit(product)(values, x))


def test_without_a_process_nothing_is_tried(monkeypatch: pytest.MonkeyPatch, anew: Process) -> None:
    monkeypatch.setattr("sys.executable", "")
    op = operator(doubled, (8, 6))
    assert find_rule(op) is None
    assert (
        find_rule.note(op)
        == "Tried on random operands, there is no Python executable to start a process with."
    )
    assert anew._running is None


def test_a_process_that_went_is_started_again(own: Process) -> None:
    text, x = program(doubled, (2, 3)), np.ones((2, 3), np.float32)
    for kill in (signal.SIGKILL, signal.SIGTERM):
        ((found,),) = own.run(0, text, [[x]]) or [()]
        np.testing.assert_array_equal(found, x * 2 + 2)
        assert own._running is not None
        os.kill(own._running.pid, kill)
        own._running.wait()


@pytest.mark.slow
def test_one_that_had_nothing_to_do_ends_and_is_started_again(
    own: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it ends while it is asked."""
    monkeypatch.setattr(process, "IDLE_S", 0.1)
    text, x = program(doubled, (2, 3)), np.ones((2, 3), np.float32)
    own.run(0, text, [[x]])
    running = own._running
    assert running is not None
    assert running.wait(10) == 0
    monkeypatch.setattr(running, "poll", lambda: None)  # seen alive, and gone
    monkeypatch.setattr(process, "IDLE_S", 60.0)
    assert own.run(0, text, [[x]]) is not None


def test_what_is_refused_is_told_from_what_ends(own: Process) -> None:
    text, x = program(doubled, (2, 3)), np.ones((2, 3), np.float32)
    assert own.run(0, "no program", [[x]]) is None
    assert own.run(1, text, [[np.ones((2, 4), np.float32)]]) is None
    found = own.run(1, text, [[x], [x * 2], [x * 3]])
    assert found is not None
    np.testing.assert_array_equal([result for (result,) in found], [4 * x, 8 * x, 12 * x])


@pytest.mark.parametrize(
    "answer", [b"", b"ouch", b"\xff" * 64, worker._LENGTHS.pack(3, 0) + b"[1]"]
)
def test_nonsense_for_an_answer_ends_it(
    answer: bytes, own: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "damaged.py"
    script.write_text(
        f"import sys\nsys.stdout.buffer.write({answer!r})\nsys.stdout.flush()\nsys.exit(3)\n"
    )
    monkeypatch.setattr(process, "_WORKER", script)
    with pytest.raises(Ended, match="ended its process"):
        own.run(0, program(doubled, (2, 3)), [[np.ones((2, 3), np.float32)]])


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=4
    ),
    st.integers(1, 2),
    st.text(),
)
def test_messages_arrive_as_they_were(
    tensors: list[tuple[str, list[int]]], runs: int, text: str
) -> None:
    arrays = tuple(
        np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(jnp.dtype(d))
        for d, shape in tensors
    )
    sent, stream = worker.Message("run", 7, text, arrays * runs, runs), io.BytesIO()
    worker.write(stream, sent)
    stream.seek(0)
    found = worker.read(stream)
    assert found is not None
    assert found[:3] == sent[:3]
    assert [len(run) for run in worker.by_run(found)] == [len(arrays)] * runs
    for a, b in zip(found.arrays, sent.arrays, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    for end in range(0, len(stream.getvalue()), 7):
        assert worker.read(io.BytesIO(stream.getvalue()[:end])) is None
