"""A square is no product of two unreduced halves."""

from __future__ import annotations

from autopar.core.graph import OpNode, TensorInfo
from autopar.ops.rules.linearity import linear_sets

X, Y, OUT = (TensorInfo(n, (8,), "float32", 4) for n in range(3))


def test_each_factor_of_a_product_may_be_unreduced() -> None:
    assert linear_sets(OpNode(0, "mul", (X, Y), (OUT,)), (0,), (1,)) == ((0,), (1,))


def test_a_square_of_parts_times_the_whole_may_come_out_negative() -> None:
    assert linear_sets(OpNode(0, "mul", (X, X), (OUT,)), (0,), (1,)) == ()


def test_a_tensor_added_to_itself_is_still_linear() -> None:
    assert linear_sets(OpNode(0, "add", (X, X), (OUT,)), (0, 1)) == ((0, 1),)


def test_multiples_of_one_tensor_are_that_tensor() -> None:
    """c * g times g is a square of g, whichever of the two is unreduced; so are two multiples of g."""
    doubled, tripled = (TensorInfo(n, (8,), "float32", 4, multiple_of=X.id) for n in (3, 4))
    for factors in ((doubled, X), (X, doubled), (doubled, tripled)):
        assert linear_sets(OpNode(0, "mul", factors, (OUT,)), (0,), (1,)) == ()
    assert linear_sets(OpNode(0, "mul", (doubled, Y), (OUT,)), (0,), (1,)) == ((0,), (1,))
    assert linear_sets(OpNode(0, "add", (doubled, X), (OUT,)), (0, 1)) == ((0, 1),)
