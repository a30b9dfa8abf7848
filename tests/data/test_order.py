"""Which rows batches have: against a stream that is written out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autopar.data.order import AtEnd, Order


@st.composite
def orders(draw: st.DrawFn) -> Order:
    batch = draw(st.integers(1, 6))
    rows = draw(st.integers(batch, 20))
    at_end: AtEnd = draw(st.sampled_from(["wrap", "drop"]))
    return Order(rows, batch, draw(st.one_of(st.none(), st.integers(1, 4))), at_end)


def written_out(order: Order, position: int) -> list[list[int]]:
    """The positions of the first twelve batches, row by row."""
    found: list[list[int]] = []
    while len(found) < 12 and (order.epochs is None or position // order.rows < order.epochs):
        batch = [*range(position, position + order.batch)]
        is_cut = batch[0] // order.rows != batch[-1] // order.rows
        if is_cut and order.at_end == "drop":
            position = batch[-1] // order.rows * order.rows
            continue
        found.append(batch)
        position += order.batch
    return found


@given(orders(), st.integers(0, 60))
def test_batches_are_those_of_a_stream_row_by_row(order: Order, position: int) -> None:
    expected = written_out(order, position)
    for count, batch in enumerate(expected):
        assert order.start(position, count) == batch[0]
    batches = order.batches(position)
    assert batches is None or min(batches, 12) == len(expected)
    assert (batches is None) == (order.epochs is None)


@given(orders(), st.integers(0, 60), st.integers(0, 8), st.integers(0, 8))
def test_what_follows_does_not_depend_on_where_one_stopped(
    order: Order, position: int, first: int, second: int
) -> None:
    there = order.start(position, first)
    assert order.start(there, second) == order.start(position, first + second)
    batches = order.batches(position)
    if batches is not None and first <= batches:
        assert order.batches(there) == batches - first


def test_an_epoch_has_every_row() -> None:
    order = Order(rows=10, batch=4, epochs=1, at_end="wrap")
    assert order.batches(0) == 3
    assert [order.start(0, n) for n in range(3)] == [0, 4, 8]
    dropping = Order(rows=10, batch=4, epochs=2, at_end="drop")
    assert [dropping.start(0, n) for n in range(4)] == [0, 4, 10, 14]
    assert dropping.batches(0) == 4
