"""Padded graphs compute what the true ones do, whatever stands behind the true elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, partialmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from autopar.core.dataflow import uses_of
from autopar.core.graph import TensorInfo
from autopar.core.regions import BOUNDARY
from autopar.trace import padded_choices, trace
from autopar.trace.draft import DraftOp
from autopar.trace.padding import padder as padder_module
from autopar.trace.padding.padder import Form, Padder
from autopar.trace.padding.sizes import padded_size
from tests.ops.build import Case
from tests.ops.cases import ELEMENTWISE
from tests.trace.evaluate import as_function, assert_same

SIZES = {5: 8, 6: 8, 7: 8, 9: 12, 10: 12, 11: 12, 13: 16, 14: 16, 15: 16}


def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes what destroys any value behind the true elements of whatever is not said to be zero there."""
    record = Padder.record

    def record_poisoned(
        self: Padder, op: DraftOp, outs: Sequence[TensorInfo], zeros: Sequence[Any] = ()
    ) -> None:
        record(self, op, outs, zeros)
        for true in op.outs if op.kind not in BOUNDARY else ():
            (form,) = self.forms[true.id]
            dims = [
                d for d in range(true.ndim) if form.shape[d] != true.shape[d] and d not in form.zero
            ]
            dtype = jnp.dtype(true.dtype)
            if not dims or dtype.kind == "b":
                continue
            value = 77 if not jnp.issubdtype(dtype, jnp.inexact) else float("nan")
            worse = self.masked(true, form, dims, value, op)
            clean = [d for d in form.zero if form.shape[d] != true.shape[d]]
            kept = self.masked(true, worse, clean, 0, op)
            self.forms[true.id] = [Form(kept.tensor, form.zero, form.region)]

    monkeypatch.setattr(padder_module.Padder, "record", record_poisoned)


def check(function: Callable[..., Any], *args: Any) -> None:
    """Compares a function with its padded graph; some dim has been padded."""
    assert compare(function, *args)


def compare(function: Callable[..., Any], *args: Any) -> bool:
    """Compares a function with its padded graph; whether any dim has been padded."""
    grown = set(SIZES.values())
    padded = trace(function, args, padding=SIZES)
    assert_same(jax.jit(function)(*args), as_function(padded)(*args), 1e-5)
    return any(not grown.isdisjoint(t.shape) for op in padded.graph.ops for t in op.outs)


def array(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


X, Y, PLACES = array(7, 10), array(7, 10, seed=1), jnp.asarray([[3], [-9], [0], [6], [99]])
DIMS = lax.GatherDimensionNumbers((1,), (0,), (0,))
ADDED = lax.ScatterDimensionNumbers((1,), (0,), (0,))


def heat(u: Any) -> Any:
    """A step of the heat equation by slices."""
    inner = u[1:-1, 1:-1]
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return u.at[1:-1, 1:-1].set(inner + 0.1 * (around - 4 * inner))


def loop(x: Any) -> Any:
    """A loop with a carry, slices and a stack of uneven dims, and a choice in it."""

    def body(carry: Any, row: Any) -> tuple[Any, Any]:
        grown = lax.cond(row.sum() > 0, lambda c: c + row, lambda c: -c, carry)
        return grown, jnp.max(grown) + row

    return lax.scan(body, jnp.zeros(10), x)


def loss(params: dict[str, Any], ids: Any) -> Any:
    """A tied embedding with its cross entropy."""
    hidden = jnp.tanh(params["table"][ids] @ params["w"])
    scores = jax.nn.log_softmax(hidden @ params["table"].T)
    return -jnp.mean(jnp.take_along_axis(scores, ids[..., None], -1))


MOVED = ("bitcast_convert_type", "copy", "device_put", "stop_gradient")
"""What computes nothing is not padded for itself; another width has another dim."""
COMPUTED = [case for case in ELEMENTWISE if case.kind not in MOVED]
KEY = jax.random.key(3)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "bits": lambda x, y: (jax.random.uniform(KEY, x.shape) * x, jax.random.bits(KEY, y.T.shape)),
    "bitcast": lambda x, y: lax.bitcast_convert_type(x, "uint32") >> 3,
    "elementwise": lambda x, y: jnp.exp(x) / y + jnp.where(x > 0, x, 2.0),
    "sum": lambda x, y: (x / y).sum(0) + (x / y).sum() + jnp.mean(x * y, 1)[0],
    "max": lambda x, y: (jnp.max(x, 0), jnp.min(x * y, 1), jnp.prod(x), jnp.argmax(y, 1), jnp.argmin(y, 0)),
    "negative": lambda x, y: (jnp.max(-jnp.abs(x), 1), jnp.min(jnp.abs(y), 0), (x > 9).any(1), (x < 9).all(0)),
    "narrow": lambda x, y: (jnp.max(x.astype("float8_e4m3fn"), 0).astype(x.dtype), jnp.min(y.astype("float8_e4m3fn"))),
    "integers": lambda x, y: (jnp.max((-x * 9).astype(int) - 99, 0), jnp.sum(x.astype(int), 1)),
    "product": lambda x, y: (x @ y.T, x.T @ y, jnp.einsum("ij,ij->i", x, y), jnp.einsum("ij,kl->ikjl", x, y)),
    "softmax": lambda x, y: jax.nn.softmax(x) @ jax.nn.log_softmax(y, 0).T,
    "cumulative": lambda x, y: (jnp.cumsum(x, 0), lax.cumsum(y, 1, reverse=True), lax.cummax(x, 1)),
    "reshape": lambda x, y: (x.reshape(70), x.reshape(7, 2, 5), x.reshape(70).reshape(7, 10) * y),
    "layout": lambda x, y: (x.T + y.T, x[:, None] + y[None], jnp.broadcast_to(x[0], (14, 10)), x[:, None].squeeze(1)),
    "slices": lambda x, y: (x[1:] - x[:-1], x[::2], x[2:5, 1:9] + y[1:4, 2:], x[:, 3:]),
    "pads": lambda x, y: (jnp.pad(x, 1) + 1, jnp.pad(x, ((0, 2), (3, 0)), constant_values=5.0)),
    "cut pads": lambda x, y: lax.pad(x, 0.0, [(1, -2, 0)] * 2) + lax.pad(y, 1.0, [(-3, 2, 0)] * 2),
    "gaps": lambda x, y: lax.pad(x * y, x[0, 0], [(1, 2, 0), (0, 1, 1)]),
    "turned": lambda x, y: (x[::-1], x[:, ::-1] + y, jnp.roll(x, 2, 0), jnp.roll(y, (1, -3), (0, 1))),
    "joined": lambda x, y: (jnp.concatenate([x, y]), jnp.stack([x, y]), jnp.hstack([x[:, :2], x, y[:, 1:]])),
    "sorted": lambda x, y: (jnp.sort(x, 0), jnp.sort(y, 1), jnp.argsort(x, 1)),
    "split": lambda x, y: jnp.split(x, [2, 7], 1)[1] * y[:, :5],
    "updates": lambda x, y: (x.at[2:4].set(0.0), x.at[:, 1:-1].add(y[:, :8]), x.at[0].multiply(y[1])),
    "dynamic": lambda x, y: lax.dynamic_update_slice(x, lax.dynamic_slice(y, (jnp.int32(2), 0), (3, 10)), (5, 0)),
    "random": lambda x, y: x + jax.random.normal(jax.random.key(0), x.shape),
    "complex": lambda x, y: jnp.abs((x + 1j * y).sum(0)),
    "barrier": lambda x, y: sum(lax.optimization_barrier((x * y, x + y))),
    "heat": lambda x, y: jax.grad(lambda u: (heat(heat(u)) * y).sum())(x),
    "loop": lambda x, y: (loop(x), jax.grad(lambda u: loop(u)[1].sum())(y)),
    "while": lambda x, y: lax.while_loop(lambda c: (c * c).sum() < 1e4, lambda c: c * 2 + y, x),
    "remat": lambda x, y: jax.grad(lambda u: jax.checkpoint(lambda v: jnp.sin(v @ y.T).sum())(u))(x),
}  # fmt: skip


@pytest.mark.quick_share(6)
@pytest.mark.parametrize("name", OPERATORS)
def test_nothing_behind_the_true_elements_changes_a_value(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch)
    check(OPERATORS[name], X, Y)


@pytest.mark.quick_share(6)
@pytest.mark.parametrize("case", COMPUTED, ids=lambda case: case.name)
def test_all_that_works_element_by_element_is_padded(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch)
    rng = np.random.default_rng(0)
    args = [arg.draw(rng) for arg in case.args]
    padded = trace(case.function, args, padding={4: 6, 8: 9})
    assert_same(jax.jit(case.function)(*args), as_function(padded)(*args), 1e-5)
    assert any({6, 9}.intersection(t.shape) for op in padded.graph.ops for t in op.outs)


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
@pytest.mark.parametrize("state", [True, False])
def test_indices_mean_places_of_the_true_dim(
    mode: str, state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch)
    rows = array(5, 10, seed=2)

    def read(x: Any, i: Any, rows: Any) -> Any:
        x = x if state else x * 2
        taken = lax.gather(x, i, DIMS, (1, 10), mode=mode)
        added = lax.scatter_add(x, i, rows, ADDED, mode=mode)
        written = lax.scatter_max(x, i, rows, ADDED, mode=mode)
        return (
            taken,
            added.sum(0),
            written * 2,
            jnp.take_along_axis(x, jnp.abs(i) % 7 * jnp.ones((1, 10), int), 0, mode=mode),
        )

    check(read, X, PLACES, rows)


def test_a_step_with_a_tied_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch)
    params = {"table": array(13, 16), "w": array(16, 16, seed=1)}
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 13, size=(6, 5)))

    def step(params: Any, ids: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, ids))

    check(step, params, ids)


@pytest.mark.slow
@settings(deadline=None, max_examples=16)
@given(
    st.lists(st.sampled_from(sorted(OPERATORS)), min_size=2, max_size=4),
    st.randoms(use_true_random=False),
)
def test_chains_of_operators(names: list[str], random: Any) -> None:
    picks = [random.random() for _ in names]

    def chain(x: Any, y: Any) -> Any:
        for name, pick in zip(names, picks, strict=True):
            found = jax.tree.leaves(OPERATORS[name](x, y))
            same = [value for value in found if value.shape == x.shape and value.dtype == x.dtype]
            if same:
                x, y = jnp.tanh(same[int(pick * len(same))]), jnp.cos(x)
        return x, y

    with pytest.MonkeyPatch.context() as patch:
        poisoned(patch)
        compare(chain, X, Y)


def test_a_missing_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch)
    masked = Padder.masked

    def unmasked(self: Padder, tensor: Any, form: Form, dims: Any, value: Any, op: DraftOp) -> Form:
        return (
            form
            if op.kind == "reduce_sum" and value == 0
            else masked(self, tensor, form, dims, value, op)
        )

    monkeypatch.setattr(Padder, "masked", unmasked)
    with pytest.raises(AssertionError):
        check(OPERATORS["sum"], X, Y)


@given(st.integers(1, 100_000), st.integers(1, 64))
def test_padded_sizes_are_even_and_add_little(size: int, devices: int) -> None:
    found = padded_size(size, devices)
    assert size <= found
    assert 100 * found <= 115 * size
    assert found == size or any(
        found % parts == 0 for parts in range(2, devices + 1) if devices % parts == 0
    )


def test_even_graphs_are_not_padded() -> None:
    even = trace(partial(OPERATORS["product"]), (array(8, 16), array(8, 16)))
    assert padded_choices(even.graph, 8) == []
    uneven = trace(partial(OPERATORS["product"]), (array(15, 63), array(15, 63)))
    assert padded_choices(uneven.graph, 8) == [{15: 16, 63: 64}]


def test_what_adds_much_and_is_not_the_batch_is_also_left_as_it_is() -> None:
    def scores(w: Any, x: Any) -> Any:
        return jnp.einsum("bsw,whd->bhsd", x, w)

    uneven = trace(scores, (array(63, 25, 8), array(30, 16, 63)))
    assert padded_choices(uneven.graph, 8) == [{25: 28, 30: 32, 63: 64}, {30: 32, 63: 64}]


def test_what_many_devices_share_evenly_is_left_as_it_is() -> None:
    assert padded_size(7168, 8192) == 7168
    assert padded_size(7169, 8192) == 8192


def test_the_dim_that_a_loop_goes_along_is_not_padded() -> None:
    def deep(ws: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, w: (x @ w, None), x, ws)[0]

    graph = trace(deep, (array(15, 63, 63), array(63, 63))).graph
    assert padded_choices(graph, 8) == [{63: 64}]


def test_a_while_loop_goes_along_no_dim() -> None:
    """How often it goes round is not known: no size is told by it."""

    def rounds(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 1, lambda x: x + 1, x)

    graph = trace(rounds, (array(15, 8),), while_trips=15).graph
    assert padded_choices(graph, 8) == [{15: 16}]


@pytest.mark.parametrize(("rounds", "is_worth"), [(2, True), (200, False)])
def test_padding_is_looked_into_by_what_is_made_in_all_rounds(rounds: int, is_worth: bool) -> None:
    def deep(x: Any, words: Any) -> Any:
        return jax.lax.fori_loop(0, rounds, lambda _, x: jnp.sin(x), x) @ words

    graph = trace(deep, (array(64, 64), array(64, 63))).graph
    assert bool(padded_choices(graph, 8)) == is_worth


def layers(params: Any, x: Any) -> Any:
    """The gradient of two dense layers with a bias."""

    def energy(params: Any) -> Any:
        hidden = jax.nn.gelu(x @ params["a"] + params["b"])
        return (jnp.tanh(hidden @ params["c"]) ** 2).mean()

    return jax.grad(energy)(params)


LAYERS = {"a": array(8, 16), "b": array(16), "c": array(16, 8, seed=1)}, array(30, 8)


def test_zeros_are_written_by_what_writes_anyway_and_once_for_all_who_read_them() -> None:
    """Rows that are added: activations and both gradients are masked where they are made, not behind products."""
    graph = trace(layers, LAYERS, padding={30: 32}).graph
    masks = [op for op in graph.ops if op.kind == "select_n"]
    uses = uses_of(graph)
    assert len(masks) == 3
    for mask in masks:
        (masked,) = (
            t
            for t in mask.ins
            if t.id in graph.producers and graph.producers[t.id].kind != "broadcast_in_dim"
        )
        assert graph.producers[masked.id].kind in ("mul", "add_any")
        assert len(uses[masked.id]) == 1


def test_operators_say_what_share_of_them_is_added() -> None:
    graph = trace(layers, LAYERS, padding={30: 32}).graph
    assert {op.added for op in graph.ops if op.kind == "dot_general"} == {1 - 30 / 32}
    assert {op.added for op in graph.ops if op.kind in ("select_n", "pad")} == {1.0}
    assert {op.added for op in trace(layers, LAYERS).graph.ops} == {0.0}


def test_bits_of_padded_rows_are_drawn_with_the_others() -> None:
    def noisy(x: Any) -> Any:
        return x * jax.random.bernoulli(KEY, 0.5, x.shape) + x

    graph = trace(lambda x: noisy(x * 2).sum(1), (array(30, 8),), padding={30: 32}).graph
    assert {
        op.outs[0].shape for op in graph.ops if op.kind == "threefry2x32" and op.outs[0].ndim == 2
    } == {(32, 8)}
    makers = {
        graph.producers[t.id].kind
        for op in graph.ops
        if op.kind == "threefry2x32"
        for t in op.ins
        if t.ndim == 2
    }
    assert makers == {"iota_2x32_shape"}
    assert not [op for op in graph.ops if op.kind == "slice" and op.ins[0].ndim == 2]


def test_jax_traces_once_what_pads_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of many layers is padded by few functions, and the graph is the same as if each were traced anew."""

    def layers(x: Any, weights: Any) -> Any:
        for w in weights:
            x = jax.nn.softmax(x @ w) @ w.T
        return x

    args = np.ones((6, 9)), [np.ones((9, 9))] * 8
    calls: list[tuple[Any, ...] | None] = []

    def noted(self: Padder, *given: Any, known_as: Any = None, anew: bool = False) -> Any:
        calls.append(known_as)
        return call(self, *given, known_as=None if anew else known_as)

    call = Padder.call
    monkeypatch.setattr(Padder, "call", noted)
    graph = trace(layers, args, padding={9: 12}).graph
    known = [what for what in calls if what is not None]
    assert len(known) > 4 * len(set(known))
    monkeypatch.setattr(Padder, "call", partialmethod(noted, anew=True))
    assert str(trace(layers, args, padding={9: 12}).graph) == str(graph)
